"""Shared by every command: the flags --config and --debug, overrides, and one-line errors."""

import ast
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags

from longmem_jax.config import checks, overrides
from longmem_jax.config.base import base
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError, nearest
from longmem_jax.experiment import Experiment, prepare_workdir, saved_config

CONFIGS = Path(__file__).parents[1] / 'configs'
MISSING = (
    '--config= is missing: for example --config=configs/quickstart.py; a --workdir= with the '
    'config.json of a run needs none'
)


def define_config() -> flags.FlagHolder:
    """The flag `--config=configs/NAME.py[:variant]`; `run` applies its overrides."""
    # We parse the overrides ourselves: ml_collections fails with tracebacks.
    return config_flags.DEFINE_config_file(
        'config', None, 'configs/NAME.py[:variant]', lock_config=True, sys_argv=[]
    )


def run(function: Callable[[], Any]) -> None:
    """Parses the command line, calls `function` and ends the process.

    A `UsageError` or a faulty command line gives one message and exit code 2; `--debug` also shows
    the traceback.
    """
    if 'debug' not in flags.FLAGS:
        flags.DEFINE_bool('debug', False, 'Show tracebacks of errors that the user can fix.')

    def main(argv: list[str]) -> None:
        # At level INFO, Orbax reports every step of a save.
        logging.set_verbosity(logging.INFO if flags.FLAGS.debug else logging.WARNING)
        try:
            if len(argv) > 1:
                raise UsageError(f'unknown arguments {argv[1:]}: options begin with --')
            function()
        except UsageError as error:
            sys.exit(fail(error))

    app.run(main, flags_parser=_parse)


def command(function: Callable[[Any], Any], *, workdir: bool = True) -> None:
    """Runs `function` as a command with a config; call it last in a module, after its own flags.

    Args:
      function: called with the checked `Experiment` of `--config=` and `--workdir=`; if `workdir` is
        False, with the unchecked configuration.
      workdir: whether the command takes `--workdir=`, the folder of a run.
    """
    config = define_config()
    folder = flags.DEFINE_string('workdir', '', 'Folder of the run.') if workdir else None

    def call() -> None:
        if config.value is None:
            raise UsageError(MISSING)
        if folder is None:
            function(config.value)
            return
        checks.require_runnable(config.value, jax.device_count())
        mesh = sharding.make_mesh(config.value.mesh.to_dict())
        function(Experiment(config.value, prepare_workdir(folder.value), mesh))

    run(call)


def reason(error: BaseException) -> str:
    """An error's message, without an embedded traceback."""
    text = f'{type(error).__name__}: {error}'
    last = list(re.finditer(r'^[\w.]+(?:Error|Exception)\b.*', text, re.MULTILINE))
    if 'Traceback' in text and last:
        text = text[last[-1].start() :]
    return text.replace('longmem_jax.errors.', '').strip()


def fail(error: BaseException) -> int:
    """Prints an error that the user can fix; returns the exit code 2."""
    if '--debug' in sys.argv or '--debug=true' in sys.argv:
        traceback.print_exception(error)
    print(reason(error), file=sys.stderr)
    return 2


def _find_config(argv: list[str]) -> list[str]:
    """The arguments with the file that `--config=` means, by its path or by its name in the package.

    Raises:
      UsageError: there is no such file, or it makes no config.
    """
    found = []
    for argument in argv:
        match = re.fullmatch(r'--?config=([^:]*)(:.*)?', argument, re.DOTALL)
        if match:
            path = _config_file(match[1])
            if not _defines_get_config(path):
                raise UsageError(
                    f'{argument}: {path} has no function get_config; a config is a Python file with '
                    'one, such as configs/quickstart.py'
                )
            argument = f'--config={path}{match[2] or ""}'
        found.append(argument)
    return found


def _config_file(given: str) -> Path:
    """The file of a path; else the package's, by name or as `configs/NAME.py`."""
    path = Path(given)
    if path.is_file():
        return path
    name = re.fullmatch(r'(?:configs/)?([a-z]\w*?)(?:\.py)?', given)
    if name and (packaged := CONFIGS / f'{name[1]}.py').is_file():
        return packaged
    known = [other.stem for other in sorted(CONFIGS.glob('[a-z]*.py'))]
    there = [str(other) for other in sorted(path.parent.glob('[a-z]*.py'))] if path.suffix else []
    raise UsageError(
        f'--config={given}: there is no such file or name; {nearest(given, [*there, *known])}give the '
        f'path of a config, or one of the names {", ".join(known)}'
    )


def _defines_get_config(path: Path) -> bool:
    """Whether a file is Python that defines or imports the name `get_config`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        # A mistake in a config is shown where Python finds it.
        return path.suffix == '.py'
    names = {
        getattr(node, field, None) for node in ast.walk(tree) for field in ('name', 'asname', 'id')
    }
    return not names.isdisjoint({'get_config', '*'})


def _require_sections(config: Any) -> None:
    """Raises `UsageError` if a file made something other than a whole configuration."""
    needed = 'get_config must return what longmem_jax.config.base.base() makes, with its own values'
    if not isinstance(config, ml_collections.ConfigDict):
        raise UsageError(f'--config: get_config returned {config!r}; {needed}.')
    missing = [section for section in base() if section not in config]
    if missing:
        raise UsageError(f'--config: the config has no {", ".join(missing)}; {needed}.')


def _of_workdir(workdir: str) -> ml_collections.ConfigDict | None:
    """The configuration that a run has left in its folder; None where there is none."""
    there = workdir and (Path(workdir).expanduser() / 'config.json').is_file()
    return saved_config(workdir).lock() if there else None


def _parse(argv: list[str]) -> list[str]:
    """absl's flag parser with our overrides; its errors and a config file's become one message."""
    try:
        argv = flags.FLAGS.read_flags_from_files(argv, force_gnu=False)
        argv, config_overrides = overrides.split_arguments(argv)
        rest = flags.FLAGS(_find_config(argv))
        config = flags.FLAGS['config'].value if 'config' in flags.FLAGS else None
        if config is None and 'config' in flags.FLAGS and 'workdir' in flags.FLAGS:
            config = flags.FLAGS['config'].value = _of_workdir(flags.FLAGS['workdir'].value)
        if config is not None:
            _require_sections(config)  # a file that could not be loaded raises only here
            overrides.apply(config, config_overrides)
        elif config_overrides:
            raise UsageError(MISSING)
        return rest
    except (
        flags.Error, UsageError, LookupError, AttributeError, TypeError, ValueError,
        OSError, SyntaxError, ImportError,
    ) as error:  # fmt: skip
        sys.exit(fail(error))
