"""Shared by every command: the flags --config and --debug, overrides, and one-line errors.

What takes long to import is imported where it is used, so that `--help` is there at once.
"""

import contextlib
import functools
import importlib.metadata
import io
import itertools
import re
import select
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags

from longmem_jax import stopping
from longmem_jax.config import files
from longmem_jax.devices import allocator, lost
from longmem_jax.errors import (
    ELSEWHERE,
    LONGEST,
    MESSAGE,
    UsageError,
    disk_errors,
    memory_errors,
    nearest,
    said_last,
    visible,
)
from longmem_jax.files import nowhere

BROKEN_PIPE = 141  # exit code of programs that SIGPIPE ends
MISSING = (
    '--config= is missing: for example --config=quickstart; a --workdir= with the config.json of a run '
    'needs none'
)
HELP = (
    '-?',
    '-h',
    *(f'{dash}{name}' for dash in ('-', '--') for name in ('help', 'helpshort', 'helpfull')),
)

# Its flags are listed by `--help` of the command that asks for them.
flags.disclaim_key_flags()


def define_config() -> flags.FlagHolder[Any]:
    """The flag `--config=NAME[:variant]`; `run` applies its overrides.

    `--config=WORKDIR/config.json` is the configuration of a run.
    """
    # We parse the overrides ourselves: ml_collections fails with tracebacks.
    return config_flags.DEFINE_config_file(
        'config',
        None,
        'NAME[:variant], the path of a config, or config.json of a run; not needed with the --workdir= '
        'of a run. '
        'Every field is set by --config.SECTION.FIELD=VALUE.',
        lock_config=True,
        sys_argv=[],
    )


def run(function: Callable[[], Any], define: Callable[[], None] | None = None) -> None:
    """Parses the command line, calls `function` and ends the process.

    `define` is called first, to define flags; its `UsageError` is a message too. Then `function`
    imports what it needs, and calls `stopping.listen` after that.

    A `UsageError`, a problem of a disk or a wrong command line gives one message and exit code 2;
    `--debug` also shows the traceback. Stopped by SIGTERM the process exits with 143, by Ctrl-C with
    130.
    """
    _take_any_text()
    allocator.keep_pages()
    stopping.listen(command=True, importing=True)
    if define is not None:
        try:
            define()
        except UsageError as error:
            sys.exit(fail(error))
    if 'debug' not in flags.FLAGS:
        flags.DEFINE_bool('debug', False, 'Show tracebacks of errors that the user can fix.')

    def main(argv: list[str]) -> None:
        # At level INFO, Orbax reports every step of a save.
        logging.set_verbosity(logging.INFO if flags.FLAGS.debug else logging.WARNING)
        try:
            if len(argv) > 1:
                raise UsageError(f'unknown arguments {argv[1:]}: options begin with --')
            stopping.require_none()  # a library may have swallowed one
            with disk_errors(), memory_errors():
                from longmem_jax.devices import programs

                programs.keep_programs()
                if define is None:
                    stopping.listen(command=True)  # what takes long to import is there
                function()
            sys.stdout.flush()
        except UsageError as error:
            # A library may turn what a signal raises into an error of its own.
            code = fail(error)
            code = stopping.heard() or code
            lost.ended(reason(error), code)
            sys.exit(code)
        except stopping.Stopped as stopped:
            lost.ended(f'{stopping.name(stopped.code - 128)}.', stopped.code)
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError) and _is_reader_gone():
                lost.ended(reason(error), BROKEN_PIPE)
                sys.exit(BROKEN_PIPE)
            if code := stopping.replaced():
                lost.ended(f'{stopping.name(code - 128)}.', code)
                sys.exit(code)
            gone = visible(lost.by_another(error))
            if not gone or '--debug' in sys.argv:
                print(visible(traceback.format_exc(), LONGEST), file=sys.stderr, end='')
            if gone:
                print(gone, file=sys.stderr)
            lost.ended(gone or reason(error), 1)
            sys.exit(1)
        sys.exit(stopping.exit_code())

    # A console script is no module that has flags: those of the command are of `function`'s.
    module = '__main__' if function.__module__ == __name__ else function.__module__
    app.run(main, flags_parser=functools.partial(_parse, module=module))


def _take_any_text() -> None:
    """Texts of any language can be printed, to a terminal of any encoding and where output is closed."""
    for name in ('stdout', 'stderr'):
        if getattr(sys, name) is None:  # a file that is opened later must not get its descriptor
            setattr(sys, name, nowhere())
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            with contextlib.suppress(OSError):  # it leads elsewhere since Python has opened it
                stream.reconfigure(errors='backslashreplace')


def _is_reader_gone() -> bool:
    """Whether the program that reads our output, such as `head`, has ended; then prints nothing more."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors are always looked for
    if not output.poll(0):
        return False
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.close()  # or the end of the process would write what is left, and fail
    return True


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
        import jax

        from longmem_jax.config import checks
        from longmem_jax.devices import sharding
        from longmem_jax.experiment import Experiment
        from longmem_jax.workdir import workdir_of

        if config.value is None:
            raise UsageError(MISSING)
        if folder is None:
            function(config.value)
            return
        checks.require_runnable(config.value, jax.device_count())
        mesh = sharding.make_mesh(config.value.mesh.to_dict())
        with workdir_of(folder.value) as path:
            function(Experiment(config.value, path, mesh))

    run(call)


def reason(error: BaseException) -> str:
    """An error's message for a terminal, without an embedded traceback."""
    return visible(said_last(f'{type(error).__name__}: {error}'), 2 * MESSAGE)


def fail(error: BaseException) -> int:
    """Prints an error that the user can fix; returns the exit code 2."""
    if '--debug' in sys.argv or '--debug=true' in sys.argv:
        print(visible(''.join(traceback.format_exception(error)), LONGEST), file=sys.stderr)
    print(reason(error), file=sys.stderr)
    return 2


def _config_file(argv: list[str]) -> tuple[list[str], ml_collections.ConfigDict | None]:
    """The command line without configurations of JSON, and the configuration.

    None if a file makes it, or there is none.

    Raises:
      UsageError: the file of `--config=` is missing or makes no config.
    """
    from longmem_jax.config.saved import saved_config

    rest, config, remaining = [], None, list(argv)
    while remaining:
        argument = remaining.pop(0)
        if re.fullmatch(r'--?config', argument) and remaining:
            argument = f'--config={remaining.pop(0)}'
        match = re.fullmatch(r'--?config=([^:]*)(:.*)?', argument, re.DOTALL)
        if match and (path := Path(match[1])).suffix == '.json' and path.is_file():
            if match[2]:
                raise UsageError(f'{argument}: the configuration of a run takes no {match[2]!r}.')
            config = saved_config(path).lock()
            continue
        if match:
            argument = f'--config={files.found(match[1], argument)}{match[2] or ""}'
        rest.append(argument)
    return rest, config


def _of_workdir(workdir: str | None) -> ml_collections.ConfigDict | None:
    """The configuration that a run has left in its folder; None where there is none."""
    from longmem_jax.config.saved import saved_config

    if not workdir or not (Path(workdir).expanduser() / 'config.json').is_file():
        return None
    return saved_config(workdir).lock()


def _help(argv: list[str], module: str) -> None:
    """Shows what a command does and its flags, or its version, if asked to, and ends with 0."""
    given = set(itertools.takewhile(lambda argument: argument != '--', argv))
    if '--version' in given:
        print(f'longmem_jax {importlib.metadata.version("longmem_jax")}')
        sys.exit(0)
    if asked := given & set(HELP):
        name = sys.argv[0] if module == '__main__' else module
        text = flags.FLAGS.module_help(name).partition(':\n')[2]
        if any(argument.endswith('full') for argument in asked):
            text = flags.FLAGS.get_help()
        print(f'{(sys.modules[module].__doc__ or "").strip()}\n\nflags:\n{text}')
        sys.exit(0)


def _of_flag(error: flags.Error) -> UsageError:
    """absl's complaint about a flag in our words."""
    if isinstance(error, flags.UnrecognizedFlagError):
        from longmem_jax.config.base import base
        from longmem_jax.config.overrides import named

        near = nearest(error.flagname, list(flags.FLAGS))
        fields = list(named(base(), ELSEWHERE.get(error.flagname, error.flagname)))
        if fields and 'config' in flags.FLAGS:
            near = f'there is {", ".join(f"--{field}" for field in fields)}; '
        return UsageError(f'--{error.flagname}: there is no such flag; {near}--help lists them.')
    said = re.sub(r'^(flag |ERROR:: )', '', str(error))
    said = re.sub(r'invalid literal for int\(\).*', 'must be a whole number', said, flags=re.DOTALL)
    return UsageError(re.sub(r'could not convert string to float.*', 'must be a number', said))


def _parse(argv: list[str], module: str) -> list[str]:
    """absl's flag parser with our overrides; its errors and a config file's become one message."""
    try:
        argv = flags.FLAGS.read_flags_from_files(argv, force_gnu=False)
        _help(argv, module)
        from longmem_jax.config import overrides

        argv, config_overrides = overrides.split_arguments(argv)
        argv, config = _config_file(argv)
        rest = flags.FLAGS(argv)
        if config is not None:
            flags.FLAGS['config'].value = config
        elif 'config' in flags.FLAGS:
            config = flags.FLAGS['config'].value
        if config is None and 'config' in flags.FLAGS and 'workdir' in flags.FLAGS:
            config = flags.FLAGS['config'].value = _of_workdir(flags.FLAGS['workdir'].value)
        if config is not None:
            files.require_sections(config)  # a file that could not be loaded raises only here
            overrides.apply(config, config_overrides)
        elif config_overrides:
            raise UsageError(MISSING)
        return rest
    except flags.Error as error:
        sys.exit(fail(_of_flag(error)))
    except (
        UsageError, LookupError, AttributeError, TypeError, ValueError,
        OSError, SyntaxError, ImportError,
    ) as error:  # fmt: skip
        sys.exit(fail(error))
