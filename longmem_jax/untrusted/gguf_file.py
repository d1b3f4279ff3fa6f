"""GGUF files that others made: their header is checked, and only bytes of the file are asked for.

A file is 'GGUF', a version, two counts, the metadata (names to values), the tensors' names, shapes,
types and places, and the tensors one after another, each at a multiple of the alignment. Every length
and count is compared with the bytes that are left before anything of that size is made.
"""

import math
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.untrusted import byte_ranges
from longmem_jax.untrusted.schema import shown

SUFFIX, MAGIC = '.gguf', b'GGUF'
# Number of a type to its name, numbers in a block and bytes of a block.
TYPES = {
    0: ('F32', 1, 4), 1: ('F16', 1, 2), 30: ('BF16', 1, 2), 2: ('Q4_0', 32, 18), 3: ('Q4_1', 32, 20),
    6: ('Q5_0', 32, 22), 7: ('Q5_1', 32, 24), 8: ('Q8_0', 32, 34), 10: ('Q2_K', 256, 84),
    11: ('Q3_K', 256, 110), 12: ('Q4_K', 256, 144), 13: ('Q5_K', 256, 176), 14: ('Q6_K', 256, 210),
    16: ('IQ2_XXS', 256, 66), 17: ('IQ2_XS', 256, 74), 18: ('IQ3_XXS', 256, 98),
    19: ('IQ1_S', 256, 50), 20: ('IQ4_NL', 32, 18), 21: ('IQ3_S', 256, 110), 22: ('IQ2_S', 256, 82),
    23: ('IQ4_XS', 256, 136), 29: ('IQ1_M', 256, 56), 34: ('TQ1_0', 256, 54), 35: ('TQ2_0', 256, 66),
    39: ('MXFP4', 32, 17),
}  # fmt: skip
# Number of a kind of value to its format in `struct`.
NUMBERS = {
    0: '<B', 1: '<b', 2: '<H', 3: '<h', 4: '<I', 5: '<i', 6: '<f', 7: '<?', 10: '<Q', 11: '<q', 12: '<d',
}  # fmt: skip
BOOL, TEXT, LIST = 7, 8, 9
LARGEST_HEADER = 256 << 20  # bytes
LARGEST_SIZE = 1 << 48  # of an axis, and of all together
LONGEST_NAME = 1 << 16
MOST_AXES = 4
VERSIONS = (2, 3)


class Tensor(NamedTuple):
    """Where a tensor is.

    Attributes:
      type: name of its type ('F32', 'Q4_K', ...).
      shape: its shape, the last axis lies together; the file has it in the opposite order.
      start, end: bytes of the file.
    """

    type: str
    shape: tuple[int, ...]
    start: int
    end: int


class Header(NamedTuple):
    """What a file holds.

    Attributes:
      metadata: name to a number, a truth value, a text, a list of texts, or an array of numbers.
      tensors: name to tensor.
    """

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def is_gguf(path: Path) -> bool:
    """Whether a path is that of a GGUF file: by its name, where it may be missing, or by its content.

    Programs that keep such files under names of their own leave the ending away.
    """
    if path.suffix.lower() == SUFFIX:
        return not path.is_dir()
    try:
        if not path.is_file():
            return False
        with path.open('rb') as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # what it is will be asked again by who reads it
        return False


def read_header(path: Path) -> Header:
    """The checked header of a file.

    Raises:
      UsageError: the file cannot be read, is of another format or version, is a part of several, or a
        count, length, type, shape or place in its header is impossible.
    """
    with byte_ranges.opened(path, str(path), buffering=1 << 16) as file:
        size = os.fstat(file.fileno()).st_size
        reader = _Reader(file, size, str(path))
        try:
            return _header(reader, size)
        except (OSError, MemoryError) as error:
            raise UsageError(f'{path}: cannot be read ({error}).') from error


class _Reader:
    """The header from its first byte on."""

    def __init__(self, file: Any, size: int, where: str):
        self._file, self.where, self.at = file, where, 0
        self._left = min(size, LARGEST_HEADER)

    def problem(self, why: str) -> UsageError:
        return UsageError(f'{self.where}: not a whole GGUF file ({why}). Fetch or make it again.')

    def take(self, size: int, what: str) -> bytes:
        """The next bytes, of which there must be as many."""
        if size > self._left:
            raise self.problem(f'{what} of {size:,} bytes, of which {self._left:,} are left')
        content = self._file.read(size)
        if len(content) < size:
            raise self.problem('it ends early')
        self._left -= size
        self.at += size
        return content

    def number(self, form: str, what: str) -> Any:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form), what))
        return value

    def count(self, least: int, what: str) -> int:
        """A number of things, each of at least `least` bytes."""
        value = self.number('<Q', what)
        if value > self._left // least:
            raise self.problem(f'{value:,} {what}, of which {self._left:,} bytes are left')
        return value

    def text(self, what: str, longest: int = LARGEST_HEADER) -> str:
        size = self.number('<Q', what)
        if size > longest:
            raise self.problem(f'{what} of {size:,} bytes')
        content = self.take(size, what)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise self.problem(f'{what} is not in UTF-8') from error

    def value(self, kind: int, name: str) -> Any:
        """A value of the metadata."""
        if kind in NUMBERS:
            if kind == BOOL:
                return self._bools(self.take(1, name), name)[0]
            return self.number(NUMBERS[kind], name)
        if kind == TEXT:
            return self.text(name)
        if kind != LIST:
            raise self.problem(f'{name} has values of the unknown type {kind}')
        kind = self.number('<I', name)
        if kind == TEXT:
            return [self.text(name) for _ in range(self.count(8, f'texts of {name}'))]
        if kind not in NUMBERS:
            raise self.problem(f'{name} is a list of the type {kind}; numbers and texts are read')
        each = struct.calcsize(NUMBERS[kind])
        content = self.take(self.count(each, f'numbers of {name}') * each, name)
        if kind == BOOL:
            self._bools(content, name)
        return np.frombuffer(content, NUMBERS[kind])

    def _bools(self, content: bytes, name: str) -> list[bool]:
        if content.translate(None, b'\0\1'):
            raise self.problem(f'{name} has truth values that are neither 0 nor 1')
        return [byte == 1 for byte in content[:1]]


def _header(reader: _Reader, size: int) -> Header:
    start = reader.take(min(8, size), 'a start')
    if start[:4] != MAGIC or len(start) < 8:
        raise reader.problem(f'it begins with {shown(start[:4].decode("latin-1"))}, not with GGUF')
    (version,) = struct.unpack('<I', start[4:])
    if version not in VERSIONS:
        known = ' and '.join(map(str, VERSIONS))
        more = ', from a machine of other byte order' if version >= 1 << 16 else ''
        raise reader.problem(f'version {version}{more}; versions {known} are read')
    num_tensors = reader.count(24, 'tensors')
    metadata: dict[str, Any] = {}
    for _ in range(reader.count(13, 'entries of metadata')):
        name = reader.text('a name of metadata', LONGEST_NAME)
        if name in metadata:
            raise reader.problem(f'{shown(name)} is there twice')
        metadata[name] = reader.value(reader.number('<I', 'a type'), shown(name))
    parts = metadata.get('split.count', 1)
    if isinstance(parts, int) and parts > 1:
        raise UsageError(
            f'{reader.where}: is one of {parts} parts; join them first, with '
            '`llama-gguf-split --merge FIRST_PART FILE`.'
        )
    return Header(metadata, _tensors(reader, num_tensors, _alignment(reader, metadata), size))


def _alignment(reader: _Reader, metadata: dict[str, Any]) -> int:
    alignment = metadata.get('general.alignment', 32)
    possible = isinstance(alignment, int) and alignment.bit_count() == 1
    if not possible or not 8 <= alignment <= 1 << 20:
        raise reader.problem(f'general.alignment = {shown(alignment)}: a power of 2, at least 8')
    return alignment


def _tensors(reader: _Reader, count: int, alignment: int, size: int) -> dict[str, Tensor]:
    """The tensors; each must begin where the one before it ended, rounded up to the alignment."""
    found: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name = reader.text('a name of a tensor', LONGEST_NAME)
        said = shown(name)
        if name in found:
            raise reader.problem(f'{said} is there twice')
        axes = reader.number('<I', said)
        if not 1 <= axes <= MOST_AXES:
            raise reader.problem(f'{said} has {axes} axes')
        shape = struct.unpack(f'<{axes}Q', reader.take(8 * axes, said))[::-1]
        if not all(shape) or math.prod(shape) > LARGEST_SIZE:
            raise reader.problem(f'{said} has the shape {shape}')
        number = reader.number('<I', said)
        if number not in TYPES:
            known = ', '.join(name for name, *_ in TYPES.values())
            raise UsageError(f'{reader.where}: {said} is of type {number}; read are {known}.')
        kind, numbers, length = TYPES[number]
        if shape[-1] % numbers:
            raise reader.problem(f'{said} has rows of {shape[-1]}, in blocks of {numbers}')
        bytes_of = math.prod(shape) // numbers * length
        found[name] = (kind, shape, reader.number('<Q', said), bytes_of)
    first = _rounded(reader.at, alignment)
    tensors, end = {}, 0
    for name, (kind, shape, offset, bytes_of) in sorted(found.items(), key=lambda item: item[1][2]):
        if offset != _rounded(end, alignment):
            raise reader.problem(
                f'{shown(name)} is at {offset:,}, not {_rounded(end, alignment):,}'
            )
        end = offset + bytes_of
        tensors[name] = Tensor(kind, shape, first + offset, first + end)
    if tensors and size not in (first + end, first + _rounded(end, alignment)):
        raise reader.problem(f'{size:,} bytes, by its header {first + end:,}')
    return tensors


def _rounded(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
