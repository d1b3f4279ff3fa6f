"""Settings of the C allocator, each in a process of its own: they cannot be undone."""

import subprocess
import sys

import pytest

from longmem_jax.devices import allocator

# Before and after: kB of resident memory and of addresses. Then a block of 64 MB is written, and the
# flags of its addresses follow.
PROGRAM = """
import ctypes, sys
from pathlib import Path
from longmem_jax.devices import allocator

def status(name):
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

def flags(address):
    inside = False
    for line in Path('/proc/self/smaps').read_text().splitlines():
        word = line.split()[0]
        if '-' in word:
            first, end = (int(part, 16) for part in word.split('-'))
            inside = first <= address < end
        elif inside and word == 'VmFlags:':
            return line.split()[1:]

allocator.PAGES = Path(sys.argv[1])
before = status('VmRSS'), status('VmSize')
allocator.keep_pages()
for _ in range(int(sys.argv[2])):
    allocator.give_back()
after = status('VmRSS'), status('VmSize')
libc = ctypes.CDLL('libc.so.6')
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(64 << 20)
ctypes.memset(block, 1, 64 << 20)
print(after[0] - before[0], after[1] - before[1], *flags(block + (32 << 20)))
"""


def pages(folder, enabled, size=2 << 20):
    """A folder as the kernel's, in which it says what it does about huge pages."""
    (folder / 'enabled').write_text(enabled)
    (folder / 'hpage_pmd_size').write_text(f'{size}\n')
    return folder


def run(folder, times):
    """Resident kB and kB of addresses that the settings add; flags of a block that follows."""
    command = [sys.executable, '-c', PROGRAM, str(folder), str(times)]
    resident, addresses, *flags = subprocess.check_output(command, text=True).split()
    return int(resident), int(addresses), flags


@pytest.fixture(autouse=True)
def only_glibc():
    """Skips where the settings do nothing, or the kernel has no huge pages."""
    if allocator._glibc() is None or not (allocator.PAGES / 'enabled').exists():
        pytest.skip('needs glibc and a kernel with huge pages')


@pytest.mark.parametrize('times', [0, 2])
def test_the_heap_asks_for_huge_pages_and_takes_no_memory(tmp_path, times):
    resident, addresses, flags = run(pages(tmp_path, 'always [madvise] never'), times)
    assert 'hg' in flags, 'a block on the heap does not ask for huge pages (madvise)'
    assert addresses > 64 << 10, 'no addresses were set aside'
    assert resident < 16 << 10, 'setting addresses aside wrote to them'


@pytest.mark.parametrize(
    'kernel', [('always madvise [never]',), ('always [madvise] never', 512 << 20)]
)
def test_nothing_is_asked_for_where_huge_pages_are_off_or_too_large(tmp_path, kernel):
    _, addresses, flags = run(pages(tmp_path, *kernel), 1)
    assert 'hg' not in flags
    assert addresses < 16 << 10


def test_a_kernel_that_says_nothing_changes_nothing(tmp_path):
    _, addresses, flags = run(tmp_path, 1)
    assert 'hg' not in flags
    assert addresses < 16 << 10
