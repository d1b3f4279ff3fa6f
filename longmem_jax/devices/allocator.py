"""Settings of the C allocator where JAX computes on CPUs.

XLA allocates its large buffers again in every step. By default glibc returns their pages to the system
after each step, and clearing them again costs a tenth of the step (measured by
`experiments.speed.bench`). Where the kernel gives huge pages to those who ask, buffers are put on
these: a processor finds the place of 2 MB at once, not of 4 KB, which saves 3 to 6 % of a step.

All threads share one part of the memory ("arena") then, and those that compile wait for each other. So
nothing is set where steps run on a TPU or GPU, or where none runs; and MALLOC_ARENA_MAX=16 before a
command lets it compile sooner, with slower steps.
"""

import ctypes
import glob
import importlib.util
import os
import sys
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -3, -4, -8
ARENAS = 'MALLOC_ARENA_MAX'  # the variable that glibc reads
MADV_HUGEPAGE = 14
MOST_MAPPED = 65536  # glibc's own M_MMAP_MAX
MOST_OLD = 32 << 20  # the largest M_MMAP_THRESHOLD before glibc 2.35
HUGE = 2 << 20  # bytes of a huge page; larger ones, as on some ARM systems, would waste memory
LARGEST = 64 << 30  # bytes of addresses that are set aside
PAGES = Path('/sys/kernel/mm/transparent_hugepage')
# Packages by which JAX uses accelerators, and files that are there if the machine has one.
ACCELERATORS = {
    'libtpu': ('/dev/accel*', '/dev/vfio/*'),
    'jax_plugins': ('/dev/nvidia*', '/dev/kfd', '/dev/dxg'),
}
# Arguments of commands that compile for other machines and run no step.
COMPILING = frozenset({'--mode=compile', 'experiments.tpu_programs'})
OVERCOMMIT = Path('/proc/sys/vm/overcommit_memory')  # 2: all addresses count as memory
_kept = False  # whether `keep_pages` was called


def keep_pages() -> None:
    """Lets the process keep freed memory, on huge pages if it can, if the C library is glibc.

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
    _use_huge_pages(libc)


def give_back() -> None:
    """Returns free pages to the system; useful after compilation has left freed pages behind."""
    libc = _glibc()
    if libc is None:
        return
    libc.malloc_trim(0)
    # Without the end of the heap; what is added there from now on would be small pages. A program that
    # only uses this library keeps glibc's settings: any change would fix M_MMAP_THRESHOLD at 128 kB.
    if _kept:
        _use_huge_pages(libc)


def _glibc() -> ctypes.CDLL | None:
    """The C library, None if it is not glibc."""
    try:
        libc = ctypes.CDLL('libc.so.6')
        libc.malloc_trim, libc.mallopt  # noqa: B018
    except (OSError, AttributeError):
        return None
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
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


def _use_huge_pages(libc: ctypes.CDLL) -> None:
    """Makes the heap larger by addresses without pages, and asks for huge ones there.

    glibc does so by itself if GLIBC_TUNABLES=glibc.malloc.hugetlb=1 was set when the process started.
    Nothing happens where memory or addresses are limited, or the kernel gives huge pages to nobody or
    to all.
    """
    size = _bytes_to_set_aside()
    if not size:
        return
    libc.mallopt(M_MMAP_MAX, 0)  # a block of its own would not be used again
    start = libc.malloc(size)
    libc.mallopt(M_MMAP_MAX, MOST_MAPPED)
    if not start:
        return
    first, end = -(-start // HUGE) * HUGE, (start + size) // HUGE * HUGE
    libc.madvise(first, end - first, MADV_HUGEPAGE)
    # Never written to, so still without pages. With `keep_pages` it stays the end of the heap.
    libc.free(start)


def _bytes_to_set_aside() -> int:
    """Half of the memory of the machine; 0 where huge pages of 2 MB are not to be asked for.

    Also 0 where addresses are limited or count as memory, or are written to when they are given.
    """
    if 'MALLOC_PERTURB_' in os.environ or 'perturb' in os.environ.get('GLIBC_TUNABLES', ''):
        return 0
    import resource  # only Unix has it

    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    if any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits):
        return 0
    try:
        never_too_many = OVERCOMMIT.read_text().strip() == '2'
        asked_for = '[madvise]' in (PAGES / 'enabled').read_text()
        size = int((PAGES / 'hpage_pmd_size').read_text())
        memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    except (OSError, ValueError):
        return 0
    if never_too_many or not asked_for or size != HUGE:
        return 0
    return min(memory // 2, LARGEST) // HUGE * HUGE
