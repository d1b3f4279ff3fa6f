"""The C allocator on CPUs: XLA asks for its large buffers anew in every step, glibc gives the pages
back to the system after each, and clearing them again costs a tenth of the step (measured by
`longmem_jax.commands.bench`)."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE = (1 << 31) - 1


def keep_pages() -> None:
    """Lets the process keep freed memory, where the C library is glibc.

    To be called before JAX starts its threads: an arena that a thread has got stays its own.
    """
    try:
        mallopt = ctypes.CDLL('libc.so.6').mallopt
    except (OSError, AttributeError):
        return
    # Buffers of one arena only: the others cannot hold blocks above 64 MB and map them anew.
    for option, value in (
        (M_MMAP_THRESHOLD, 1 << 30),
        (M_TRIM_THRESHOLD, LARGE),
        (M_ARENA_MAX, 1),
    ):
        mallopt(option, value)


def give_back() -> None:
    """Returns free pages to the system now: worth it once compiling has left its litter."""
    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)
    except (OSError, AttributeError):
        return
