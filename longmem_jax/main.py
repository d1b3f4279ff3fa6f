"""The command: `python -m longmem_jax.main --config=configs/quickstart.py --workdir=DIR --mode=train`.

A switchboard: flags, devices and errors are dealt with here; every mode is a function that can be
called from a notebook.
"""

import re
import sys
import traceback

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from longmem_jax.commands import (
    compile,
    translate,
)
from longmem_jax.commands import (
    evaluate as evaluate_mode,
)
from longmem_jax.commands import (
    generate as generate_mode,
)
from longmem_jax.commands.train import train
from longmem_jax.config import checks
from longmem_jax.devices import allocator, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, prepare_workdir
from longmem_jax.retrieval import datastore, spalm
from longmem_jax.retrieval import evaluate as retrieval_evaluate

_CONFIG = config_flags.DEFINE_config_file(
    'config', None, 'configs/NAME.py[:variant]', lock_config=True
)
_MODE = flags.DEFINE_enum(
    'mode',
    'train',
    ['train', 'evaluate', 'generate', 'compile', 'build_datastore', 'train_spalm'],
    'What to do.',
)
_WORKDIR = flags.DEFINE_string('workdir', '', 'Folder of the run: checkpoints, events, results.')
_PROFILE = flags.DEFINE_bool('profile', False, 'Trace a few training steps to WORKDIR/profile.')
_DEBUG = flags.DEFINE_bool('debug', False, "Show tracebacks of errors that are the user's to mend.")
_PROMPT = flags.DEFINE_string('prompt', '', 'generate: the text to continue; @FILE reads a file.')
_LENGTH = flags.DEFINE_integer('length', None, 'generate: tokens to write.', lower_bound=0)
_TEMPERATURE = flags.DEFINE_float(
    'temperature', None, 'generate: 0 = the likeliest token.', lower_bound=0.0
)
_TOP_K = flags.DEFINE_integer(
    'top_k', None, 'generate: draw from the k likeliest; 0 = all.', lower_bound=0
)
_TOP_P = flags.DEFINE_float(
    'top_p', None, 'generate: draw from the nucleus of this probability.', 0.0, 1.0
)
_SEED = flags.DEFINE_integer('seed', None, 'generate: random seed.')
_SAVE_STATE = flags.DEFINE_string(
    'save_state', '', 'generate, evaluate: write the memory to this file.'
)
_LOAD_STATE = flags.DEFINE_string(
    'load_state', '', 'generate, evaluate: start from the memory in it.'
)
_SPLIT = flags.DEFINE_string(
    'split', '', 'evaluate, build_datastore: train, validation or test; default test, or train.'
)
_TOPOLOGY = flags.DEFINE_string('topology', '', 'compile: a TPU slice such as v5e:4x4.')
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False, 'Join the other processes (TPU pods, clusters).'
)
_COORDINATOR = flags.DEFINE_string(
    'coordinator', '', 'host:port of process 0, where JAX cannot find it.'
)
_NUM_PROCESSES = flags.DEFINE_integer('num_processes', -1, 'Processes of the run.')
_PROCESS_ID = flags.DEFINE_integer('process_id', -1, 'Number of this process.')


def _run():
    config = _CONFIG.value
    # Orbax tells every step of a save at level INFO.
    logging.set_verbosity(logging.INFO if _DEBUG.value else logging.WARNING)
    if config is None:
        raise UsageError('--config= is missing: for example --config=configs/quickstart.py')
    allocator.keep_pages()
    if _MODE.value == 'compile':
        compile.compile_for(config, _TOPOLOGY.value)
        return
    if _DISTRIBUTED.value or _COORDINATOR.value:
        sharding.start_processes(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    checks.require_runnable(config, jax.device_count())
    if config.model.kind == 'seq2seq':
        _refuse_for_pairs()
    workdir = prepare_workdir(_WORKDIR.value)
    experiment = Experiment(config, workdir, sharding.make_mesh(config.mesh.to_dict()))
    if _MODE.value == 'train':
        train(experiment, profile=_PROFILE.value)
    elif _MODE.value == 'build_datastore':
        datastore.build(experiment, _SPLIT.value or 'train')
    elif _MODE.value == 'train_spalm':
        spalm.train(experiment)
    elif _MODE.value == 'evaluate' and config.retrieval.kind != 'none':
        retrieval_evaluate.evaluate(experiment, _SPLIT.value or 'test')
    elif _MODE.value == 'evaluate' and config.model.kind == 'seq2seq':
        translate.evaluate(experiment, _SPLIT.value or 'test')
    elif _MODE.value == 'generate' and config.model.kind == 'seq2seq':
        translate.translate_prompt(
            experiment, generate_mode.read_prompt(_PROMPT.value).decode('utf-8', 'replace')
        )
    elif _MODE.value == 'evaluate':
        evaluate_mode.evaluate(
            experiment,
            _SPLIT.value or 'test',
            save_state=_SAVE_STATE.value,
            load_state=_LOAD_STATE.value,
        )
    else:
        given = {
            'length': _LENGTH.value,
            'temperature': _TEMPERATURE.value,
            'top_k': _TOP_K.value,
            'top_p': _TOP_P.value,
            'seed': _SEED.value,
        }
        generate_mode.generate(
            experiment,
            _PROMPT.value,
            {name: value for name, value in given.items() if value is not None},
            save_state=_SAVE_STATE.value,
            load_state=_LOAD_STATE.value,
        )


def _refuse_for_pairs():
    """Refuses what a model of pairs, which remembers nothing, cannot do."""
    if _MODE.value in ('build_datastore', 'train_spalm'):
        raise UsageError(f"--mode={_MODE.value}: not for a model of the kind 'seq2seq'.")
    if _SAVE_STATE.value or _LOAD_STATE.value:
        raise UsageError("--save_state, --load_state: a model of the kind 'seq2seq' has no memory.")


def _reason(error: BaseException) -> str:
    """The message of an error; of one that carries a printed traceback, what stands behind it."""
    text = f'{type(error).__name__}: {error}'
    last = list(re.finditer(r'^[\w.]+(?:Error|Exception)\b.*', text, re.MULTILINE))
    if 'Traceback' in text and last:
        text = text[last[-1].start() :]
    return text.replace('longmem_jax.errors.', '').strip()


def _fail(error: BaseException) -> int:
    """Prints an error that is the user's to mend; returns the exit code 2."""
    if '--debug' in sys.argv or '--debug=true' in sys.argv:
        traceback.print_exception(error)
    print(_reason(error), file=sys.stderr)
    return 2


def _parse(argv):
    """absl's flag parser, with its errors and those of the config file as one message."""
    try:
        rest = flags.FLAGS(argv)
        if _CONFIG.value is not None:
            _CONFIG.value.model  # noqa: B018  (a file that could not be loaded says so only here)
        return rest
    except (flags.Error, UsageError, LookupError, AttributeError, TypeError, ValueError) as error:
        sys.exit(_fail(error))
    except (OSError, SyntaxError, ImportError) as error:
        sys.exit(_fail(error))


def _main(argv):
    if len(argv) > 1:
        sys.exit(_fail(UsageError(f'unknown arguments {argv[1:]}: options begin with --')))
    try:
        _run()
    except UsageError as error:
        sys.exit(_fail(error))


def main() -> None:
    """Entry point of `python -m longmem_jax.main`."""
    app.run(_main, flags_parser=_parse)


if __name__ == '__main__':
    main()
