"""Damaged and hostile forms of a file, drawn by hypothesis."""

import contextlib
import json

import numpy as np
from hypothesis import strategies as st

from longmem_jax.untrusted import tensor_file

DEEP = json.loads('[' * 90 + ']' * 90)
VALUES = (
    None, True, False, -1, 0, 1, 3, 2**31 - 1, 2**31, 2**63, 10**30, -0.5, 1e308, float('nan'),
    float('inf'), '', 'x', '../victim', '/etc/passwd', 'progress-00001.safetensors', '\0', '\ud800',
    '\x1b[2J', 'O', 'bool', '~nobody/x', 'x' * 3000, [], [[]], {}, {'a': 1}, [None] * 3, DEEP,
)  # fmt: skip
DTYPES = ('float16', 'float32', 'float64', 'int8', 'int32', 'int64', 'uint8', 'bool')
NUMBERS = (0, 1, -1, 7, 255, 2**31 - 1, -(2**31), 2**62, np.nan, np.inf, 1e30)
_SMALL = st.integers(0, 1 << 16)


@st.composite
def changed_bytes(draw, whole):
    """Some bytes flipped, cut out, put in, made zero, doubled, or all of them others."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(_SMALL) * 2654435761 % max(len(content), 1)
        size = draw(st.sampled_from((1, 2, 8, 100, 10_000)))
        kind = draw(
            st.sampled_from(('flip', 'cut', 'remove', 'insert', 'zero', 'double', 'number'))
        )
        if kind == 'flip' and content:
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == 'cut':
            del content[at:]
        elif kind == 'remove':
            del content[at : at + size]
        elif kind == 'insert':
            content[at:at] = draw(st.binary(min_size=1, max_size=20))
        elif kind == 'zero':
            content[at : at + size] = bytes(len(content[at : at + size]))
        elif kind == 'double':
            content[at:at] = content[at : at + size]
        else:  # a length or a count
            number = draw(st.sampled_from((2**62, 2**64 - 1, 2**31, 0, 1 << 40)))
            content[at // 8 * 8 : at // 8 * 8 + 8] = number.to_bytes(8, 'little')
    return bytes(content)


@st.composite
def changed_value(draw, whole):
    """A JSON value of which some parts are others, missing, or new."""
    value = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 2))):
        value = _changed(draw, value)
    return value


def _changed(draw, value):
    if not isinstance(value, (dict, list)) or not value or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(VALUES))
    if isinstance(value, list):
        at = draw(st.integers(0, len(value) - 1))
        kind = draw(st.sampled_from(('inside', 'inside', 'remove', 'double')))
        if kind == 'inside':
            return [*value[:at], _changed(draw, value[at]), *value[at + 1 :]]
        return value[:at] + value[at + 1 :] if kind == 'remove' else [*value, value[at]]
    name = draw(st.sampled_from(sorted(value)))
    kind = draw(st.sampled_from(('inside', 'inside', 'inside', 'remove', 'rename', 'add')))
    if kind == 'inside':
        return value | {name: _changed(draw, value[name])}
    if kind == 'add':
        return value | {draw(st.sampled_from(('new', 'a.b', '', '\x1b', '_x'))): 1}
    rest = {key: item for key, item in value.items() if key != name}
    return rest if kind == 'remove' else rest | {f'{name}_': value[name]}


ESC = '\x1b]0;title\x07'


def escapes(value):
    """The JSON value with `ESC` in place of each of its parts and in each name, one after the other."""
    yield ESC
    if isinstance(value, list):
        for at, item in enumerate(value[:4]):
            for other in escapes(item):
                yield [*value[:at], other, *value[at + 1 :]]
    elif isinstance(value, dict):
        for name, item in value.items():
            yield {key: each for key, each in value.items() if key != name} | {name + ESC: item}
            for other in escapes(item):
                yield value | {name: other}


def with_escapes(content):
    """The bytes of a file of JSON, of JSON lines or of safetensors, changed as in `escapes`."""
    if content[8:9] == b'{' and content[:1] != b'{':
        size = int.from_bytes(content[:8], 'little')
        for header in escapes(json.loads(content[8 : 8 + size])):
            packed = json.dumps(header).encode()
            yield len(packed).to_bytes(8, 'little') + packed + content[8 + size :]
        return
    for first, rest in (
        (content, b''),
        content.split(b'\n', 1) if b'\n' in content else (b'', b''),
    ):
        with contextlib.suppress(ValueError):
            for other in escapes(json.loads(first)):
                yield json.dumps(other).encode() + b'\n' + rest
            return
    yield content.replace(b'a', ESC.encode())


@st.composite
def changed_json(draw, whole):
    """A JSON file with other values, or with other bytes."""
    if draw(st.integers(0, 3)) == 0:
        return draw(changed_bytes(whole))
    return json.dumps(draw(changed_value(json.loads(whole)))).encode()


@st.composite
def changed_json_lines(draw, whole):
    """JSON lines, of which one is another."""
    if draw(st.integers(0, 3)) == 0:
        return draw(changed_bytes(whole))
    lines = whole.splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = draw(changed_json(lines[at]))
    return b'\n'.join(lines) + b'\n'


@st.composite
def changed_tensors(draw, whole, path):
    """Safetensors with other bytes, another header, or other arrays and their right checksum.

    Args:
      draw: of hypothesis.
      whole: bytes of the file.
      path: where they are.
    """
    kind = draw(st.sampled_from(('bytes', 'header', 'metadata', 'arrays', 'arrays')))
    size = int.from_bytes(whole[:8], 'little')
    if kind == 'bytes':
        return draw(changed_bytes(whole))
    if kind in ('header', 'metadata'):
        header = json.loads(whole[8 : 8 + size])
        if kind == 'header' or '__metadata__' not in header:
            header = draw(changed_value(header))
        else:
            header['__metadata__'] = draw(changed_value(header['__metadata__']))
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, 'little') + text + whole[8 + size :]
    path.write_bytes(whole)
    arrays, metadata = tensor_file.read(path)
    metadata.pop(tensor_file.CHECKSUM, None)
    name = draw(st.sampled_from(sorted(arrays)))
    array = draw(changed_array(arrays[name]))
    arrays = {key: item for key, item in arrays.items() if key != name}
    tensor_file.write(path, arrays if array is None else arrays | {name: array}, metadata)
    return path.read_bytes()


@st.composite
def changed_array(draw, array):
    """Another dtype, shape, or number; None = no array."""
    kind = draw(st.sampled_from(('none', 'dtype', 'shape', 'number', 'number', 'number')))
    with np.errstate(all='ignore'):
        if kind == 'none':
            return None
        if kind == 'dtype':
            return array.astype(draw(st.sampled_from(DTYPES)))
        if kind == 'shape':
            return draw(
                st.sampled_from(
                    (array.ravel(), array[None], array.ravel()[:1], array.ravel()[:0], array.T)
                )
            )
        flat = array.ravel().copy()
        if flat.size:
            number = np.asarray(draw(st.sampled_from(NUMBERS))).astype(array.dtype)
            flat[draw(_SMALL) % flat.size] = number
        return flat.reshape(array.shape)
