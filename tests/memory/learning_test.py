"""Memories learn in seconds what only they can know, and do not where their recipe is broken.

A key of one digit, filler, a question. Keys are at least a segment back, so without a memory the answer
is one of ten digits. A memory gets a row in `LEARNS`; a row in `BROKEN` shows that the test notices
settings with which it could not learn.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from configs import recall
from longmem_jax.config import checks, recipes
from longmem_jax.data import lanes
from longmem_jax.devices import sharding
from longmem_jax.experiment import Experiment, lower_step, to_devices

SEGMENT = 8
GUESSED = 0.1  # ten digits
NOT_LEARNED = 0.3  # three standard errors above it, and less than knowing half of the digits
LEARNED = 0.9


@dataclasses.dataclass(frozen=True)
class Run:
    """A small training.

    Attributes:
      memory: NAME of `:memory=NAME`.
      steps: of 16 lanes x 4 segments.
      changes: fields of the config, `{'model.infini.gate_init': -20.0}`.
      distances: shortest and longest, in tokens.
      layers: of the model.
    """

    memory: str
    steps: int = 100
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    distances: tuple[int, int] = (SEGMENT, 2 * SEGMENT)
    layers: int = 2


# Beyond the window of one segment that some layers also have, and what two of them hand on.
FAR = (3 * SEGMENT, 5 * SEGMENT)
LEARNS = {
    'expire_span': Run(
        'expire_span', 150, changes={'model.expire_span.num_sizes': 1}, distances=FAR
    ),
    'infini': Run('infini'),
    'memorizing': Run('memorizing', steps=250, distances=FAR),
    'linear': Run('linear'),
    't2r': Run('t2r'),
    'memsizer': Run('memsizer', steps=200),
}

BROKEN = {
    'no memory': Run('local'),
    'expire_span, short spans': Run(
        'expire_span',
        changes={
            'model.expire_span.num_sizes': 1,
            'model.expire_span.initial_share': 0.06,  # 2 of 32 tokens, and a ramp of 2
            'model.expire_span.ramp': 2,
        },
        distances=FAR,
    ),
    'infini, gates closed': Run('infini', changes={'model.infini.gate_init': -20.0}),
    'memorizing, gates closed': Run(
        'memorizing', 250, changes={'model.memorizing.gate_init': -20.0}, distances=FAR
    ),
    'linear, sums not carried': Run('linear', changes={'model.linear.carry': False}),
    'memsizer, slots not carried': Run(
        'memsizer', steps=200, changes={'model.memsizer.carry': False}
    ),
}


def config_of(run):
    """`configs/recall.py:tiny` with segments of 8, a reach of 32, and fewer steps."""
    config = recall.get_config('tiny,kind=passkey')
    sizes = dict(reach=4 * SEGMENT, memories=64, basis=16, samples=16, slots=8)
    config.model.num_layers = run.layers
    config.train.segment_length = config.evaluate.segment_length = SEGMENT
    config.train.num_steps, config.optimizer.warmup_steps = run.steps, 10
    config.optimizer.learning_rate = 5e-3
    config.data.task.update(distances=run.distances, before=0, num_fillers=4)
    recipes.use(config, run.memory, **sizes)
    config.update_from_flattened_dict(run.changes)
    return config


def right(run):
    """Share of right answers in training, in the last fifth of the steps."""
    config = config_of(run)
    mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, memory=1), jax.devices()[:1])
    experiment = Experiment(config, None, mesh)
    source = lanes.batches(
        experiment.corpus('train'), lanes=range(config.train.num_lanes),
        num_lanes=config.train.num_lanes, segment_length=SEGMENT,
        segments_per_batch=config.train.segments_per_step, seed=0, shuffle=True, num_epochs=None,
        cursor=None,
    )  # fmt: skip
    step = lower_step(experiment).compile()
    state = jax.jit(experiment.make_state, out_shardings=experiment.state_shardings)()
    shares = []
    for _ in range(run.steps):
        state, metrics = step(state, *to_devices(experiment, *next(source)))
        shares.append(metrics['accuracy'])
    return float(np.mean(jax.device_get(shares[-run.steps // 5 :])))


@pytest.mark.parametrize('name', LEARNS)
def test_learns_what_only_a_memory_can_know(name):
    assert checks.find_faults(config_of(LEARNS[name]), 1) == []
    assert right(LEARNS[name]) > LEARNED


@pytest.mark.slow
@pytest.mark.parametrize('name', BROKEN)
def test_without_its_memory_it_can_only_guess(name):
    assert right(BROKEN[name]) < NOT_LEARNED
