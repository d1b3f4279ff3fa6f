"""The command: `python -m longmem_jax.main --config=configs/quickstart.py --workdir=DIR --mode=train`.

A switchboard: `MODES` names the function of every mode, which a notebook can call as well.
"""

import shlex
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from absl import flags

from longmem_jax.agents import commands as reinforcement
from longmem_jax.commands import (
    compile,
    entry,
    evaluate,
    floors,
    generate,
    listing,
    score,
    tokenize_documents,
    translate,
)
from longmem_jax.commands.start_from import of_host
from longmem_jax.commands.train import train
from longmem_jax.config import checks
from longmem_jax.data.oddities import oddities
from longmem_jax.devices import processes, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.text import read_prompt
from longmem_jax.hosts.commands import export
from longmem_jax.lifelong import commands as lifelong
from longmem_jax.microscope import inspect
from longmem_jax.models.kinds import KINDS
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
            f'--temperature={temperature:g}: an agent takes the most likely action (0), or draws '
            'from its policy as it has learned to (1).'
        )
    reinforcement.play(experiment, seed=_SEED.value or 0, greedy=not temperature)


def _floors(experiment: Experiment) -> None:
    floors.measure(experiment, _SPLIT.value or 'test')


def _generate(experiment: Experiment) -> None:
    options = {'length': _LENGTH, 'temperature': _TEMPERATURE, 'top_k': _TOP_K, 'top_p': _TOP_P,
               'seed': _SEED, 'beams': _BEAMS}  # fmt: skip
    overrides = {name: flag.value for name, flag in options.items() if flag.value is not None}
    if not _several():
        generate.generate(experiment, _PROMPT.value, overrides, chat=_CHAT.value, **_memory_files())
        return
    common = dict(output=_OUTPUT.value, load_state=_LOAD_STATE.value, chat=_CHAT.value)
    generate.generate_all(experiment, _PROMPTS.value, overrides, **common)


def _score(experiment: Experiment) -> None:
    function, text = score.score, _PROMPT.value
    if _several():
        function, text = score.score_all, _PROMPTS.value
    elif _SAVE_STATE.value:
        raise UsageError('--save_state with --mode=score: use --mode=generate --length=0.')
    function(experiment, text, load_state=_LOAD_STATE.value, output=_OUTPUT.value)


def _inspect(experiment: Experiment) -> None:
    if _PROMPTS.value or _SAVE_STATE.value:
        raise UsageError(
            '--prompts, --save_state: not with --mode=inspect, which shows one text: give --prompt.'
        )
    inspect.inspect(
        experiment,
        _PROMPT.value,
        _OUTPUT.value,
        reads=_READS.value,
        load_state=_LOAD_STATE.value,
        command=shlex.join(sys.argv[1:]),
    )


def _several() -> bool:
    """Whether the prompts of a file are meant, each by itself."""
    if _PROMPTS.value and (_PROMPT.value or _SAVE_STATE.value):
        raise UsageError(
            '--prompts with --prompt or --save_state: every prompt of a file is read by itself, and '
            'leaves no memory; give --prompts alone, or --prompt.'
        )
    return bool(_PROMPTS.value)


def _translate(experiment: Experiment) -> None:
    if _PROMPTS.value:
        raise UsageError('--prompts: a translator takes --prompt=@FILE, a text per line.')
    text = read_prompt(_PROMPT.value).decode('utf-8', 'replace')
    translate.translate_prompt(experiment, text)


def _build_datastore(experiment: Experiment) -> None:
    build_datastore.build(experiment, _SPLIT.value or 'train')


def _export(experiment: Experiment) -> None:
    export.export(experiment, _FOLDER.value)


def _tokenize(experiment: Experiment) -> None:
    tokenize_documents.tokenize(experiment, _SPLIT.value)


def _memory_files() -> dict[str, str]:
    return {'save_state': _SAVE_STATE.value, 'load_state': _LOAD_STATE.value}


# 'compile' and 'list' are not here: they need neither data nor a workdir.
MODES = {
    'train': Mode(_train, _train, _train, _learn_stream, _learn_rewards),
    'evaluate': Mode(_evaluate, _evaluate_pairs, _evaluate, _evaluate_stream, _evaluate_rewards),
    'generate': Mode(_generate, _translate, None),
    'score': Mode(_score, None, None),
    'inspect': Mode(_inspect, None, None),
    'play': Mode(None, None, None, None, _play),
    'floors': Mode(_floors, None, None),
    'build_datastore': Mode(_build_datastore, None, None),
    'train_spalm': Mode(spalm.train, None, None),
    'export': Mode(_export, None, None),
    'tokenize': Mode(_tokenize, None, None),
}

# They read a run, so that a folder that is not there is a mistake.
OF_A_RUN = (
    'evaluate', 'generate', 'score', 'inspect', 'play', 'build_datastore', 'train_spalm', 'export',
)  # fmt: skip

# They read documents.
OF_TEXTS = ('evaluate', 'floors', 'build_datastore', 'train_spalm', 'tokenize')

_CONFIG = entry.define_config()
_MODE = flags.DEFINE_enum('mode', 'train', [*MODES, 'compile', 'list'], 'What to do.')
_WORKDIR = flags.DEFINE_string('workdir', '', 'Folder of the run: checkpoints, events, results.')
_PROFILE = flags.DEFINE_bool('profile', False, 'Trace a few training steps to WORKDIR/profile.')
_PROMPT = flags.DEFINE_string(
    'prompt',
    '',
    'generate, score, inspect: the text to continue, to score, or to show; @FILE reads a file.',
)
_PROMPTS = flags.DEFINE_string(
    'prompts', '', 'generate, score: JSON lines with a field "text", each read by itself.'
)
_OUTPUT = flags.DEFINE_string(
    'output',
    '',
    'score, generate with --prompts: the file to write; .jsonl = JSON lines; inspect: the page.',
)
_READS = flags.DEFINE_integer(
    'reads', 2000, 'inspect: the last tokens for which what they read is kept.', lower_bound=0
)
_LENGTH = flags.DEFINE_integer('length', None, 'generate: tokens to generate.', lower_bound=0)
_TEMPERATURE = flags.DEFINE_float(
    'temperature',
    None,
    'generate: 0 = always the most likely token; play: 0, or 1 to draw actions.',
    lower_bound=0.0,
)
_TOP_K = flags.DEFINE_integer(
    'top_k', None, 'generate: sample from the k most likely tokens; 0 = all.', lower_bound=0
)
_TOP_P = flags.DEFINE_float(
    'top_p', None, 'generate: sample from the nucleus of this probability.', 0.0, 1.0
)
_BEAMS = flags.DEFINE_integer(
    'beams', None, 'generate: search the most likely text with N beams.', lower_bound=0
)
_CHAT = flags.DEFINE_bool(
    'chat', False, 'generate: the prompt is what a user says; answer by the chat template.'
)
_SEED = flags.DEFINE_integer('seed', None, 'generate, play: random seed.')
_SAVE_STATE = flags.DEFINE_string(
    'save_state', '', 'generate, evaluate: save the memory to this file.'
)
_LOAD_STATE = flags.DEFINE_string(
    'load_state', '', 'generate, score, inspect, evaluate: start from the memory in this file.'
)
_FOLDER = flags.DEFINE_string('folder', '', 'export: the Hugging Face folder to write.')
_SPLIT = flags.DEFINE_string(
    'split',
    '',
    'train, validation or test; the default is test for evaluate and floors, train for build_datastore, '
    'all three for tokenize.',
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


def _function(functions: Mode, kind: str) -> Callable[[Experiment], Any] | None:
    """What a mode does with models of a kind; None = nothing."""
    of_kind = {
        'seq2seq': functions.pairs,
        'text_encoder': functions.streams,
        'agent': functions.rewards,
    }
    function = functions.classes if KINDS[kind].by_example else functions.texts
    return of_kind.get(kind, function)


def _writes(mode: str, config: Any) -> bool:
    """Whether a mode puts files of its own into the workdir; the others read a run that may be
    read-only, and write where an option says."""
    if mode != 'evaluate':
        return mode in ('train', 'floors', 'play', 'train_spalm')
    kind, source = config.model.kind, config.data.source
    texts = MODES[mode].texts is _function(MODES[mode], kind)
    return not texts or config.retrieval.kind != 'none' or source == 'recall'


def _run() -> None:
    config, mode = _CONFIG.value, _MODE.value
    if mode == 'list':
        listing.show(config)
        return
    if config is None:
        where = f'{_WORKDIR.value}: no config.json of a run is there. ' if _WORKDIR.value else ''
        raise UsageError(
            f'{where}{entry.MISSING}. --help lists all flags, --mode=list all configs.'
        )
    if mode == 'compile':
        compile.compile_for(config, _TOPOLOGY.value)
        return
    numbered = max(_NUM_PROCESSES.value, _PROCESS_ID.value) >= 0
    if _DISTRIBUTED.value or _COORDINATOR.value or numbered:
        processes.start(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    checks.require_runnable(config, jax.device_count())
    functions, kind = MODES[mode], config.model.kind
    function = _function(functions, kind)
    if function is None:
        others = ', '.join(name for name in KINDS if _function(functions, name) is not None)
        raise UsageError(f'--mode={mode}: not for models of the kind {kind!r}; it is for {others}.')
    if (KINDS[kind].by_example or kind == 'agent') and any(_memory_files().values()):
        raise UsageError(
            f'--save_state, --load_state: not for a model of the kind {kind!r}, which reads no text.'
            if kind == 'agent'
            else f'--save_state, --load_state: a model of the kind {kind!r} has no memory.'
        )
    facts = {'config': config.to_dict(), '--mode': mode, '--workdir': _WORKDIR.value}
    processes.require_same(facts | processes.installed())
    trained = mode in OF_A_RUN and not of_host(config)
    workdir = prepare_workdir(_WORKDIR.value, trained=trained, writes=_writes(mode, config))
    processes.require_shared(workdir)
    if mode in OF_TEXTS and jax.process_index() == 0:  # training says it where it says all
        for text in oddities(config.data):
            print(f'Warning: {text}.')
    function(Experiment(config, workdir, sharding.make_mesh(config.mesh.to_dict())))


def main() -> None:
    """Entry point of `python -m longmem_jax.main`."""
    entry.run(_run)


if __name__ == '__main__':
    main()
