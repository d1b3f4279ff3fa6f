"""GGUF files of others: headers that lie, and files that are cut or damaged at any place."""

import struct
import tracemalloc

import numpy as np
import pytest

from longmem_jax.errors import UsageError
from longmem_jax.untrusted import gguf_file
from longmem_jax.untrusted.gguf_file import NUMBERS, Tensor

U32, F32, BOOL, TEXT, LIST = 4, 6, 7, 8, 9


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack('<Q', len(value)) + value


def value(kind, content):
    """A value: of a kind, or (LIST, kind of the items)."""
    if isinstance(kind, tuple):
        _, each = kind
        items = b''.join(value(each, item) for item in content)
        return struct.pack('<IQ', each, len(content)) + items
    return text(content) if kind == TEXT else struct.pack(NUMBERS[kind], content)


METADATA = {
    'general.architecture': (TEXT, 'llama'),
    'llama.rope.freq_base': (F32, 5.0),
    'llama.block_count': (U32, 7),
    'flag': (BOOL, True),
    'texts': ((LIST, TEXT), ['a', '', 'caf\u00e9']),
    'numbers': ((LIST, 5), [1, -2, 3]),
}
# Name to (shape with the last axis first, type, place).
TENSORS = {'a': ((3, 2), 0, 0), 'b': ((32,), 8, 32)}
DATA = np.arange(6, dtype='<f4').tobytes() + bytes(8) + bytes(34) + bytes(30)


def packed(
    metadata=METADATA, tensors=TENSORS, data=DATA, start=b'GGUF\3\0\0\0', counts=None, alignment=32
):
    """The bytes of a file."""
    entries = [
        text(name) + struct.pack('<I', kind[0] if isinstance(kind, tuple) else kind) + value(kind, item)
        for name, (kind, item) in (metadata.items() if isinstance(metadata, dict) else metadata)
    ]  # fmt: skip
    places = [
        text(name) + struct.pack(f'<I{len(shape)}QIQ', len(shape), *shape, kind, place)
        for name, (shape, kind, place) in (
            tensors.items() if isinstance(tensors, dict) else tensors
        )
    ]
    header = start + struct.pack('<QQ', *(counts or (len(places), len(entries))))
    header += b''.join((*entries, *places))
    return header + bytes(-len(header) % alignment) + data


def read(tmp_path, content):
    path = tmp_path / 'x.gguf'
    path.write_bytes(content)
    return gguf_file.read_header(path)


@pytest.mark.parametrize('version', [2, 3])
def test_a_whole_file(version, tmp_path):
    content = packed(start=struct.pack('<4sI', b'GGUF', version))
    found = read(tmp_path, content)
    first = len(content) - len(DATA)
    assert found.tensors == {
        'a': Tensor('F32', (2, 3), first, first + 24),
        'b': Tensor('Q8_0', (32,), first + 32, first + 66),
    }
    assert found.metadata['texts'] == ['a', '', 'caf\u00e9']
    assert found.metadata['numbers'].tolist() == [1, -2, 3]
    assert found.metadata['llama.block_count'] == 7 and found.metadata['flag'] is True
    # The padding after the last tensor may be missing.
    assert read(tmp_path, content[:-30]).tensors == found.tensors


TWICE = [*METADATA.items(), ('flag', (BOOL, False))]
LARGE = 1 << 62


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(start=b'GGML\3\0\0\0'), "begins with 'GGML'"),
        (dict(start=b'GGUF\1\0\0\0'), 'version 1; versions 2 and 3'),
        (dict(start=b'GGUF\0\0\0\3'), 'version 50331648, from a machine of other byte order'),
        (dict(counts=(LARGE, 6)), 'tensors, of which'),
        (dict(counts=(2, LARGE)), 'entries of metadata, of which'),
        (dict(counts=(2, 5)), 'not a whole GGUF file'),
        (dict(counts=(3, 6)), 'not a whole GGUF file'),
        (dict(counts=(1, 6)), 'by its header'),
        (dict(metadata=TWICE), "'flag' is there twice"),
        (dict(metadata={'x': (BOOL, True), b'\xff': (BOOL, True)}), 'not in UTF-8'),
        (dict(metadata={'x' * 70_000: (BOOL, True)}), 'a name of metadata of 70,000 bytes'),
        (dict(metadata={'split.count': (U32, 3)}), 'is one of 3 parts; join them'),
        (dict(metadata={'general.alignment': (U32, 48)}), 'a power of 2, at least 8'),
        (dict(metadata={'general.alignment': (U32, 0)}), 'a power of 2, at least 8'),
        (dict(metadata={'general.alignment': (TEXT, '')}), 'a power of 2, at least 8'),
        (dict(tensors=[*TENSORS.items(), ('a', ((1,), 0, 96))]), "'a' is there twice"),
        (dict(tensors={'a': ((), 0, 0)}), "'a' has 0 axes"),
        (dict(tensors={'a': ((1,) * 5, 0, 0)}), "'a' has 5 axes"),
        (dict(tensors={'a': ((LARGE, LARGE), 0, 0)}), "'a' has the shape"),
        (dict(tensors={'a': ((2**33, 2**33), 0, 0)}), "'a' has the shape"),
        (dict(tensors={'a': ((0, 3), 0, 0)}), "'a' has the shape"),
        (dict(tensors={'a': ((6,), 4, 0)}), "'a' is of type 4; read are F32, F16"),
        (dict(tensors={'a': ((6,), 99, 0)}), "'a' is of type 99; read are F32, F16"),
        (dict(tensors={'a': ((31,), 8, 0)}), "'a' has rows of 31, in blocks of 32"),
        (dict(tensors={'a': ((6,), 0, 8)}), "'a' is at 8, not 0"),
        (dict(tensors=TENSORS | {'b': ((32,), 8, 24)}), "'b' is at 24, not 32"),
        (dict(tensors=TENSORS | {'b': ((32,), 8, 64)}), "'b' is at 64, not 32"),
        (dict(tensors=TENSORS | {'b': ((32,), 8, 0)}), "'b' is at 0, not 32"),
        (dict(tensors=TENSORS | {'b': ((32,), 8, 2**64 - 32)}), "'b' is at"),
        (dict(data=DATA + bytes(32)), 'by its header'),
        (dict(data=DATA[:-31]), 'by its header'),
        (dict(alignment=64), 'by its header'),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_headers_that_lie(changes, message, tmp_path):
    with pytest.raises(UsageError) as error:
        read(tmp_path, packed(**changes))
    assert message in str(error.value), error.value


@pytest.mark.parametrize(
    'kind, content, message',
    [
        (77, b'', 'unknown type 77'),
        (TEXT, struct.pack('<Q', LARGE), "'x' of 4,611"),
        (BOOL, b'\2', 'neither 0 nor 1'),
        (LIST, struct.pack('<IQ', BOOL, 2) + b'\1\3', 'neither 0 nor 1'),
        (LIST, struct.pack('<IQ', LIST, 1), 'a list of the type 9'),
        (LIST, struct.pack('<IQ', 13, 1), 'a list of the type 13'),
        (LIST, struct.pack('<IQ', TEXT, LARGE), 'texts of'),
        (LIST, struct.pack('<IQ', 12, LARGE), 'numbers of'),
        (LIST, struct.pack('<IQ', 0, 2**64 - 1), 'numbers of'),
    ],
)
def test_values_that_lie(kind, content, message, tmp_path):
    whole = packed(metadata={}, counts=(2, 1))
    with pytest.raises(UsageError, match=message):
        read(tmp_path, whole[:24] + text('x') + struct.pack('<I', kind) + content + whole[24:])


def test_every_place_of_a_file(tmp_path):
    """Other bytes, lengths and counts, and an end, at every place: sound, or one error and no memory."""
    whole = packed()
    header = len(whole) - len(DATA)
    changed = [whole[:at] for at in range(len(whole) - 30)]
    for at in range(header):
        for byte in {0, 1, 255, whole[at] ^ 1, whole[at] ^ 128} - {whole[at]}:
            changed.append(whole[:at] + bytes([byte]) + whole[at + 1 :])
        for number in (LARGE, 2**64 - 1, 2**31, 2**40, 2**63):
            changed.append(whole[:at] + number.to_bytes(8, 'little') + whole[at + 8 :])
        changed.append(whole[:at] + whole[at + 1 :])
        changed.append(whole[:at] + b'\0' + whole[at:])
    refused = 0
    tracemalloc.start()
    for content in changed:
        try:
            found = read(tmp_path, content)
        except UsageError as error:
            refused += 1
            assert len(str(error)) < 1000
        else:
            assert all(tensor.end <= len(content) for tensor in found.tensors.values())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > len(changed) // 2
    assert peak < 4 << 20, f'{peak:,} bytes for files of {len(whole):,}'


def test_only_files_are_opened(tmp_path):
    (tmp_path / 'folder.gguf').mkdir()
    assert not gguf_file.is_gguf(tmp_path / 'folder.gguf')
    assert gguf_file.is_gguf(tmp_path / 'missing.GGUF')
    with pytest.raises(UsageError, match='cannot be read'):
        gguf_file.read_header(tmp_path / 'missing.GGUF')
