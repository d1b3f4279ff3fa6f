"""Files that are not text, by how they begin."""

from pathlib import Path

from longmem_jax.data.stored_files import ERRORS, PACKED
from longmem_jax.data.text_files import TABLES, kind_of

LOOKED_AT = 1 << 16  # bytes at the beginning of a file
MARKS = {
    b'\xff\xfe': 'UTF-16', b'\xfe\xff': 'UTF-16', b'%PDF': 'a PDF', b'PK\x03\x04': 'a zip archive',
    b'PAR1': 'a parquet file without its ending', b'\x1f\x8b': 'gzip without its ending',
    b'\xfd7zXZ': 'xz without its ending', b'\x89PNG': 'an image', b'\xff\xd8\xff': 'an image',
}  # fmt: skip


def warning_of(file: Path) -> str:
    """What a file is, if not a text: 'looks like UTF-16'; '' if it is one, or cannot be read."""
    if kind_of(file) in TABLES:
        return ''
    try:
        with PACKED.get(file.suffix, open)(file, 'rb') as opened:
            begin = opened.read(LOOKED_AT)
    except ERRORS:
        return ''  # who reads it says why
    for mark, name in MARKS.items():
        if begin.startswith(mark):
            return f'looks like {name}'
    text = begin.decode('utf-8', 'ignore').encode()
    cut = 3 if len(begin) == LOOKED_AT else 0  # bytes of a character that is cut
    invalid = max(len(begin) - len(text) - cut, 0)
    if begin.count(0) * 100 > len(begin):
        return 'looks like UTF-16 or binary data (it has NUL bytes)'
    if not invalid:
        return ''
    return f'is not UTF-8 ({invalid:,} of its first {len(begin):,} bytes are not text)'
