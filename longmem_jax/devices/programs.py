"""Compiled programs that are kept on disk, so that a command that is run again begins at once.

They are in the user's cache folder, one folder per version of JAX and kind of processor, since a program
for another one may not run. `LONGMEM_JAX_CACHE=FOLDER` keeps them elsewhere, `LONGMEM_JAX_CACHE=off`
nowhere; `JAX_COMPILATION_CACHE_DIR` and JAX's other settings are left as they are.
"""

import contextlib
import hashlib
import os
import platform
import stat
import sys
from pathlib import Path

import filelock
import jax
import jaxlib

from longmem_jax.errors import UsageError

VARIABLE = 'LONGMEM_JAX_CACHE'
OFF = ('off', '0', 'no', 'none', 'false')
LARGEST = 4 << 30  # bytes; the programs that were not used for longest go first
LOCK = '.lockfile'  # JAX's
SHORTEST = 0.5  # seconds that a program must take to compile


def keep_programs() -> Path | None:
    """Turns the cache on, unless it is on already; returns its folder, None where it is off.

    With a limit of its size JAX locks the folder, so that several processes can use it.

    Raises:
      UsageError: the folder that `LONGMEM_JAX_CACHE` names cannot be written, or can be by others.
    """
    chosen = os.environ.get(VARIABLE, '')
    if jax.config.values['jax_compilation_cache_dir'] or chosen.lower() in OFF:
        return None
    folder = (Path(chosen).expanduser() if chosen else _of_user()) / environment()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f'{folder} is read-only')
        _require_own(folder)
        if chosen and not folder.parent.stat().st_mode & stat.S_ISVTX:  # else it may be replaced
            _require_own(folder.parent)
    except OSError as error:
        if chosen:
            raise UsageError(
                f'{VARIABLE}={chosen}: cannot be used ({error}); name another folder, or off.'
            ) from error
        return None  # programs are compiled again, as they were without a cache
    _remove_halves(folder)
    jax.config.update('jax_compilation_cache_dir', str(folder))
    jax.config.update('jax_compilation_cache_max_size', LARGEST)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', SHORTEST)
    return folder


def _require_own(folder: Path) -> None:
    """Raises `PermissionError` where others may put programs, which run as this user."""
    status = folder.stat()
    if status.st_uid not in (os.getuid(), 0):
        raise PermissionError(f'{folder} belongs to another user, whose programs would be run')
    if status.st_mode & stat.S_IWOTH:
        raise PermissionError(f'everybody may write to {folder}, and what is there is run')


def _remove_halves(folder: Path) -> None:
    """Removes programs that a process which was killed has not written to the end.

    JAX writes `NAME-cache`, then `NAME-atime`, while it holds the lock; without the second it warns in
    every later run.
    """
    with (
        contextlib.suppress(filelock.Timeout, OSError),
        filelock.FileLock(folder / LOCK, timeout=10),
    ):
        for program in folder.glob('*-cache'):
            if not program.with_name(program.name.removesuffix('cache') + 'atime').exists():
                program.unlink()


def environment() -> str:
    """Name of the folder for these versions and this kind of processor."""
    processor = platform.machine() + _processor_flags()
    kind = hashlib.sha256(processor.encode()).hexdigest()[:8]
    return f'jax-{jax.__version__}-jaxlib-{jaxlib.__version__}-{kind}'


def _of_user() -> Path:
    """The folder for what programs keep of a user and can make again."""
    if sys.platform == 'darwin':
        return Path.home() / 'Library' / 'Caches' / 'longmem_jax'
    caches = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    return Path(caches) / 'longmem_jax'


def _processor_flags() -> str:
    """What a Linux processor can do; '' elsewhere."""
    try:
        with open('/proc/cpuinfo') as file:
            lines = (line for line in file if line.startswith(('flags', 'Features', 'model name')))
            return ''.join(sorted({*lines}))
    except OSError:
        return ''
