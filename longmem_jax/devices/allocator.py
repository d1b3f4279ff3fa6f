"""Settings of the C allocator where JAX computes on CPUs.

XLA allocates its large buffers again in every step. By default glibc returns their pages to the system
after each step, and clearing them again costs a tenth of the step (measured by
`experiments.speed.bench`).

All threads share one part of the memory ("arena") then, and those that compile wait for each other. So
nothing is set where steps run on a TPU or GPU, or where none runs; and MALLOC_ARENA_MAX=16 before a
command lets it compile sooner, with slower steps.
"""

import ctypes
import glob
import importlib.util
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
ARENAS = 'MALLOC_ARENA_MAX'  # the variable that glibc reads
MOST_OLD = 32 << 20  # the largest M_MMAP_THRESHOLD before glibc 2.35
# Packages by which JAX uses accelerators, and files that are there if the machine has one.
ACCELERATORS = {
    'libtpu': ('/dev/accel*', '/dev/vfio/*'),
    'jax_plugins': ('/dev/nvidia*', '/dev/kfd', '/dev/dxg'),
}
# Arguments of commands that compile for other machines and run no step.
COMPILING = frozenset({'--mode=compile', 'experiments.tpu_programs'})
_kept = False  # whether `keep_pages` was called


def keep_pages() -> None:
    """Lets the process keep freed memory, if the C library is glibc.

    Nothing happens if JAX will not compute on CPUs, or the command only compiles. Commands call it
    first, if they can: before any library starts a thread, since a thread keeps the arena that it was
    given, and later threads share all arenas that there are.
    """
    global _kept
    libc = None if _kept else _glibc()
    if libc is None or not COMPILING.isdisjoint(sys.orig_argv) or not _computes_on_cpus():
        return
    _kept = True
    # One arena only: the others cannot hold blocks above 64 MB and would map them again every time.
    if not libc.mallopt(M_MMAP_THRESHOLD, 1 << 30):  # 128 kB from now on, if it is not set
        libc.mallopt(M_MMAP_THRESHOLD, MOST_OLD)
    libc.mallopt(M_TRIM_THRESHOLD, -1)
    if ARENAS not in os.environ:
        libc.mallopt(M_ARENA_MAX, 1)


def give_back() -> None:
    """Returns free pages to the system; useful after compilation has left freed pages behind."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library, None if it is not glibc."""
    try:
        libc = ctypes.CDLL('libc.so.6')
        libc.malloc_trim, libc.mallopt  # noqa: B018
    except (OSError, AttributeError):
        return None
    return libc


def _computes_on_cpus() -> bool:
    """Whether JAX, which is not imported yet, will choose CPUs."""
    asked = os.environ.get('JAX_PLATFORMS') or os.environ.get('JAX_PLATFORM_NAME')
    if asked:
        return asked.split(',')[0].strip() == 'cpu'
    return not any(
        importlib.util.find_spec(package) and any(glob.glob(name) for name in files)
        for package, files in ACCELERATORS.items()
    )
