"""The command: `python -m longmem_jax.main --config=configs/quickstart.py --workdir=DIR --mode=train`.

A switchboard: `MODES` names the function of every mode, which a notebook can call as well.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from absl import flags

from longmem_jax.commands import (
    compile,
    entry,
    evaluate,
    export,
    floors,
    generate,
    lifelong,
    reinforcement,
    translate,
)
from longmem_jax.commands.train import train
from longmem_jax.config import checks
from longmem_jax.devices import allocator, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.text import read_prompt
from longmem_jax.models.kinds import KINDS
from longmem_jax.pretrained import hosts
from longmem_jax.retrieval import build_datastore, spalm
from longmem_jax.retrieval import evaluate as retrieval_evaluate
from longmem_jax.workdir import prepare_workdir


class Mode(NamedTuple):
    """The functions of a mode.

    Attributes:
      texts: for models that continue texts; None = not supported.
      pairs: for models of the kind 'seq2seq'; None = not supported.
      classes: for models of the kind 'classifier'; None = not supported.
      streams: for lifelong learners; None = not supported.
      rewards: for agents; None = not supported.
    """

    texts: Callable[[Experiment], Any] | None
    pairs: Callable[[Experiment], Any] | None
    classes: Callable[[Experiment], Any] | None
    streams: Callable[[Experiment], Any] | None = None
    rewards: Callable[[Experiment], Any] | None = None


def _train(experiment: Experiment) -> None:
    train(experiment, profile=_PROFILE.value)


def _evaluate(experiment: Experiment) -> None:
    if experiment.config.retrieval.kind != 'none':
        retrieval_evaluate.evaluate(experiment, _SPLIT.value or 'test')
    else:
        evaluate.evaluate(experiment, _SPLIT.value or 'test', **_memory_files())


def _evaluate_pairs(experiment: Experiment) -> None:
    translate.evaluate(experiment, _SPLIT.value or 'test')


def _learn_stream(experiment: Experiment) -> None:
    lifelong.train(experiment, profile=_PROFILE.value)


def _evaluate_stream(experiment: Experiment) -> None:
    lifelong.evaluate(experiment, _SPLIT.value or 'test')


def _learn_rewards(experiment: Experiment) -> None:
    reinforcement.train(experiment, profile=_PROFILE.value)


def _evaluate_rewards(experiment: Experiment) -> None:
    reinforcement.evaluate(experiment, _SPLIT.value or 'test')


def _play(experiment: Experiment) -> None:
    temperature = _TEMPERATURE.value or 0
    if temperature not in (0, 1):
        raise UsageError(
            f'--temperature={temperature:g}: an agent takes the likeliest action (0), or draws from its '
            'policy as it has learned to (1).'
        )
    reinforcement.play(experiment, seed=_SEED.value or 0, greedy=not temperature)


def _floors(experiment: Experiment) -> None:
    floors.measure(experiment, _SPLIT.value or 'test')


def _generate(experiment: Experiment) -> None:
    options = {'length': _LENGTH, 'temperature': _TEMPERATURE, 'top_k': _TOP_K, 'top_p': _TOP_P,
               'seed': _SEED, 'beams': _BEAMS}  # fmt: skip
    overrides = {name: flag.value for name, flag in options.items() if flag.value is not None}
    generate.generate(experiment, _PROMPT.value, overrides, chat=_CHAT.value, **_memory_files())


def _translate(experiment: Experiment) -> None:
    text = read_prompt(_PROMPT.value).decode('utf-8', 'replace')
    translate.translate_prompt(experiment, text)


def _build_datastore(experiment: Experiment) -> None:
    build_datastore.build(experiment, _SPLIT.value or 'train')


def _export(experiment: Experiment) -> None:
    export.export(experiment, _FOLDER.value)


def _memory_files() -> dict[str, str]:
    return {'save_state': _SAVE_STATE.value, 'load_state': _LOAD_STATE.value}


# '--mode=compile' is not listed: it needs neither data nor devices.
MODES = {
    'train': Mode(_train, _train, _train, _learn_stream, _learn_rewards),
    'evaluate': Mode(_evaluate, _evaluate_pairs, _evaluate, _evaluate_stream, _evaluate_rewards),
    'generate': Mode(_generate, _translate, None),
    'play': Mode(None, None, None, None, _play),
    'floors': Mode(_floors, None, None),
    'build_datastore': Mode(_build_datastore, None, None),
    'train_spalm': Mode(spalm.train, None, None),
    'export': Mode(_export, None, None),
}

# They read the checkpoints of a run: a mistyped folder is not made.
OF_A_RUN = ('evaluate', 'generate', 'play', 'build_datastore', 'train_spalm', 'export')

_CONFIG = entry.define_config()
_MODE = flags.DEFINE_enum('mode', 'train', [*MODES, 'compile'], 'What to do.')
_WORKDIR = flags.DEFINE_string('workdir', '', 'Folder of the run: checkpoints, events, results.')
_PROFILE = flags.DEFINE_bool('profile', False, 'Trace a few training steps to WORKDIR/profile.')
_PROMPT = flags.DEFINE_string('prompt', '', 'generate: the text to continue; @FILE reads a file.')
_LENGTH = flags.DEFINE_integer('length', None, 'generate: tokens to generate.', lower_bound=0)
_TEMPERATURE = flags.DEFINE_float(
    'temperature',
    None,
    'generate: 0 = always the likeliest token; play: 0, or 1 to draw actions.',
    lower_bound=0.0,
)
_TOP_K = flags.DEFINE_integer(
    'top_k', None, 'generate: sample from the k likeliest tokens; 0 = all.', lower_bound=0
)
_TOP_P = flags.DEFINE_float(
    'top_p', None, 'generate: sample from the nucleus of this probability.', 0.0, 1.0
)
_BEAMS = flags.DEFINE_integer(
    'beams', None, 'generate: search the likeliest text with so many beams.', lower_bound=0
)
_CHAT = flags.DEFINE_bool(
    'chat', False, 'generate: the prompt is what a user says; answer by the chat template.'
)
_SEED = flags.DEFINE_integer('seed', None, 'generate, play: random seed.')
_SAVE_STATE = flags.DEFINE_string(
    'save_state', '', 'generate, evaluate: save the memory to this file.'
)
_LOAD_STATE = flags.DEFINE_string(
    'load_state', '', 'generate, evaluate: start from the memory in this file.'
)
_FOLDER = flags.DEFINE_string('folder', '', 'export: the Hugging Face folder to write.')
_SPLIT = flags.DEFINE_string(
    'split',
    '',
    'train, validation or test; the default is test for evaluate and floors, train for build_datastore.',
)
_TOPOLOGY = flags.DEFINE_string('topology', '', 'compile: a TPU slice such as v5e:4x4.')
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False, 'Join the other processes (TPU pods, clusters).'
)
_COORDINATOR = flags.DEFINE_string(
    'coordinator', '', 'host:port of process 0, if JAX cannot find it.'
)
_NUM_PROCESSES = flags.DEFINE_integer('num_processes', -1, 'Number of processes of the run.')
_PROCESS_ID = flags.DEFINE_integer('process_id', -1, 'Number of this process.')


def _run() -> None:
    config, mode = _CONFIG.value, _MODE.value
    if config is None:
        raise UsageError(entry.MISSING)
    allocator.keep_pages()
    if mode == 'compile':
        compile.compile_for(config, _TOPOLOGY.value)
        return
    numbered = max(_NUM_PROCESSES.value, _PROCESS_ID.value) >= 0
    if _DISTRIBUTED.value or _COORDINATOR.value or numbered:
        sharding.start_processes(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    checks.require_runnable(config, jax.device_count())
    functions, kind = MODES[mode], config.model.kind
    of_kind = {
        'seq2seq': functions.pairs,
        'text_encoder': functions.streams,
        'agent': functions.rewards,
    }
    function = functions.classes if KINDS[kind].by_example else functions.texts
    function = of_kind.get(kind, function)
    if function is None:
        raise UsageError(f'--mode={mode}: not for models of the kind {kind!r}.')
    if (KINDS[kind].by_example or kind == 'agent') and any(_memory_files().values()):
        raise UsageError(
            f'--save_state, --load_state: not for a model of the kind {kind!r}, which reads no text.'
            if kind == 'agent'
            else f'--save_state, --load_state: a model of the kind {kind!r} has no memory.'
        )
    trained = mode in OF_A_RUN and not hosts.is_name(config.train.start_from)
    workdir = prepare_workdir(_WORKDIR.value, trained=trained)
    function(Experiment(config, workdir, sharding.make_mesh(config.mesh.to_dict())))


def main() -> None:
    """Entry point of `python -m longmem_jax.main`."""
    entry.run(_run)


if __name__ == '__main__':
    main()
