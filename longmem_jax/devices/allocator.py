"""Settings of the C allocator on CPUs.

XLA allocates its large buffers again in every step. By default glibc returns their pages to the system
after each step, and clearing them again costs a tenth of the step (measured by
`longmem_jax.commands.bench`).
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE = (1 << 31) - 1


def keep_pages() -> None:
    """Lets the process keep freed memory, if the C library is glibc.

    Must be called before JAX starts its threads, since a thread keeps the arena it was given.
    """
    try:
        mallopt = ctypes.CDLL('libc.so.6').mallopt
    except (OSError, AttributeError):
        return
    # One arena only: the others cannot hold blocks above 64 MB and would map them again every time.
    for option, value in (
        (M_MMAP_THRESHOLD, 1 << 30),
        (M_TRIM_THRESHOLD, LARGE),
        (M_ARENA_MAX, 1),
    ):
        mallopt(option, value)


def give_back() -> None:
    """Returns free pages to the system; useful after compilation has left freed pages behind."""
    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)
    except (OSError, AttributeError):
        return
