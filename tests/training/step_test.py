"""The training step: which segments have a gradient."""

import jax
import numpy as np
import pytest

from configs import sorting
from longmem_jax.config import checks
from longmem_jax.data import lanes
from longmem_jax.devices import sharding
from longmem_jax.experiment import Experiment
from longmem_jax.training import step as train_step


def small(memory, **changes):
    """Sorting of 32 tokens in segments of 8, by one layer."""
    config = sorting.get_config(f'tiny,memory={memory}')
    config.model.update(num_layers=1, attention=(memory,), feed_forward=('dense',))
    config.train.update(segment_length=8, segments_per_step=5, num_lanes=2, **changes)
    config.data.task.length = 32
    if memory == 'infinity_former':
        fields = dict(
            memory_length=8, write_length=8, num_basis=8, widths=(0.1, 0.2), num_samples=8
        )
        config.model.infinity_former.update(fields)
    config.train.loss_weights.update(dict.fromkeys(config.train.loss_weights, 0.0))
    return config


def gradients(config):
    """Loss, gradients and the memory after one sequence in every lane."""
    mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, memory=1), jax.devices()[:1])
    made, train = Experiment(config, None, mesh), config.train
    source = lanes.batches(
        made.corpus('train'), lanes=range(2), num_lanes=2, segment_length=8,
        segments_per_batch=5, seed=0, shuffle=True, num_epochs=None, cursor=None,
    )  # fmt: skip
    batch, _ = next(source)
    assert not batch.scored[:-1].any() and batch.scored[-1].any()
    state = made.make_state()

    def loss(params):
        key = jax.random.key(0)
        return train_step.read_batch(made.model, params, state.memory, batch, key, train)

    (objective, (memory, metrics, _)), found = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        state.params
    )
    return objective, metrics['accuracy'], found, memory


@pytest.mark.parametrize(
    'memory', ['transformer_xl', pytest.param('infinity_former', marks=pytest.mark.slow)]
)
def test_segments_without_answers_need_no_gradient(memory):
    """These memories pass no gradient from segment to segment, and only the last one is scored."""
    every, last = (gradients(small(memory, gradient_segments=count)) for count in (0, 1))
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(last[2])) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), every, last)


def test_the_other_segments_have_none():
    """The KL term is of all segments, and differs if only the last one's counts."""
    every, last = (small('infinity_former', gradient_segments=count) for count in (0, 1))
    for config in (every, last):
        config.train.loss_weights.kl = 1.0
    every, last = (
        gradients(config)[2]['block_0']['attention']['memory']['sigma_bias']
        for config in (every, last)
    )
    assert np.abs(every - last).max() > 0.1 * np.abs(every).max()


def test_the_number_of_segments_with_a_gradient_is_checked():
    for count, sound in ((0, True), (5, True), (6, False), (-1, False)):
        faults = checks.find_faults(small('transformer_xl', gradient_segments=count), 1)
        assert any('gradient_segments' in fault for fault in faults) != sound


def readable(memory):
    """The rows of a ring that its count covers, zeros elsewhere."""
    rows = memory[0].attention.rows
    covered = np.arange(rows.rows_keys.shape[2]) < np.asarray(rows.count)[:, None]
    return [
        np.where(covered[:, None, :, None], part, 0) for part in (rows.rows_keys, rows.rows_values)
    ]


def test_a_bad_step_leaves_the_memory_as_it_was():
    """Of a large memory only the rows that a step replaces are kept, and put back."""
    config = small('memorizing')
    config.model.memorizing.update(memory_size=90, block_size=90, top_k=2, memory_length=8)
    mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, memory=1), jax.devices()[:1])
    made = Experiment(config, None, mesh)
    step = jax.jit(train_step.make_train_step(made.model, made.optimizer, made.schedule, config))
    state = made.make_state()
    tokens = np.random.default_rng(0).integers(0, 8, (2, 5, 2, 8)).astype(np.int32)
    start = np.zeros((2, 5, 2), bool)
    start[1, 3, 1] = True  # of the bad step: the count begins at zero again

    def batch(number):
        full = np.ones((5, 2, 8), bool)
        return lanes.Batch(
            tokens=tokens[number], targets=tokens[number], valid=full, scored=full.astype(np.uint8),
            start=start[number], num_bytes=np.ones((5, 2), np.float32),
        )  # fmt: skip

    for _ in range(3):
        state, metrics = step(state, batch(0), state.cursor)
        broken = jax.tree.map(lambda leaf: leaf * np.nan, state.params)
        after, metrics = step(state.replace(params=broken), batch(1), state.cursor)
        assert not np.isfinite(metrics['grad_norm']) and int(after.skipped) == 1
        for before, now in zip(readable(state.memory), readable(after.memory), strict=True):
            np.testing.assert_array_equal(before, now)
        same = (memory[0].attention.recent for memory in (state.memory, after.memory))
        jax.tree.map(np.testing.assert_array_equal, *same)
    assert int(state.memory[0].attention.rows.count[0]) == 90 + 120 % 90
