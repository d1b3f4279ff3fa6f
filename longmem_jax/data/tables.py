"""Texts in tables: a column of a .parquet, .csv or .tsv file, a document per row."""

import csv
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from pyarrow import parquet

from longmem_jax.data.stored_files import PACKED, SMALL, memory, read_whole
from longmem_jax.errors import UsageError, nearest

MOST_ROWS = 1024  # per byte of a file: a larger one repeats what no texts do
BLOCK, LARGEST_BLOCK = 1 << 20, 2**31 - 1  # bytes of a .csv file that are parsed at once
SEPARATORS = {'.csv': ',', '.tsv': '\t'}


class Table:
    """The texts of one column, by row.

    Row groups of a .parquet file are read when they are needed, one at a time; the column of a .csv or
    .tsv file is held in memory. Its first line has the names of the columns.
    """

    def __init__(self, path: Path, field: str):
        """Finds the column `field` of a .parquet, .csv or .tsv file, maybe packed (.gz, .xz).

        Raises:
          UsageError: the file cannot be read, or has no such column of texts.
        """
        self._path, self._field = path, field
        self._lock, self._group = threading.Lock(), -1
        self._texts: Any = None
        try:
            source = pa.BufferReader(read_whole(path)) if path.suffix in PACKED else str(path)
            kind = Path(path.stem if path.suffix in PACKED else path).suffix
            if kind in SEPARATORS:
                self._open_lines(source, SEPARATORS[kind])
            else:
                self._open_parquet(source)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f'{path}: cannot be read ({error}).') from error

    def _open_lines(self, source: pa.BufferReader | str, separator: str) -> None:
        size = self._path.stat().st_size if isinstance(source, str) else source.size()
        texts = pa.csv.read_csv(
            source,
            # A row must lie within one block or two, and a row may be a whole book.
            read_options=pa.csv.ReadOptions(block_size=min(max(size, BLOCK), LARGEST_BLOCK)),
            parse_options=pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types={self._field: pa.string()}),
        )
        self._require(texts.schema, ', named by its first line,')
        self._require_quotes(source, separator)
        self._texts, self._group = texts[self._field], 0
        self._borders = np.asarray([0, len(texts)])

    def _require_quotes(self, source: pa.BufferReader | str, separator: str) -> None:
        """Raises `UsageError` where a field goes on after its quotation marks.

        The marks are then those of its text, and pyarrow leaves them out, or joins rows.
        """
        raw: Any = source
        if isinstance(source, str):
            raw = open(source, 'rb')
        else:
            source.seek(0)
        with io.TextIOWrapper(raw, 'utf-8-sig', 'replace', newline='') as lines:
            rows = csv.reader(lines, delimiter=separator, strict=True)
            most = csv.field_size_limit(LARGEST_BLOCK)
            try:
                for _ in rows:
                    pass
            except csv.Error as error:
                raise UsageError(
                    f'{self._path}, line {rows.line_num}: a field begins with a quotation mark, and '
                    f'does not end with the next ({error}). Put such a field in quotation marks, '
                    'and write each of its own twice, as spreadsheets and pandas do.'
                ) from error
            finally:
                csv.field_size_limit(most)

    def _open_parquet(self, source: pa.BufferReader | str) -> None:
        self._file = parquet.ParquetFile(source)
        self._require(self._file.schema_arrow)
        groups = range(self._file.num_row_groups)
        declared = [self._file.metadata.row_group(group) for group in groups]
        leaves = [self._file.schema.column(leaf).path for leaf in range(len(self._file.schema))]
        column = leaves.index(self._field)
        size = self._path.stat().st_size if isinstance(source, str) else source.size()
        rows = [group.num_rows for group in declared]
        if min(rows, default=0) < 0 or sum(rows) > max(SMALL, MOST_ROWS * size):
            raise UsageError(
                f'{self._path}: declares {sum(rows):,} rows in {size:,} bytes; it is damaged.'
            )
        largest = max((g.column(column).total_uncompressed_size for g in declared), default=0)
        if largest > memory():
            raise UsageError(
                f'{self._path}: declares {largest:,} bytes of text in a group of rows, more than '
                f'{memory():,}, half of the memory of this machine; write it with smaller groups.'
            )
        self._borders = np.cumsum([0, *rows])

    def _require(self, schema: pa.Schema, named: str = '') -> None:
        """Raises `UsageError` unless the column is there and has texts; `named`: by what they are."""
        if self._field not in schema.names:
            names = ', '.join(schema.names)
            raise UsageError(
                f'{self._path}: no column {self._field!r} (config.data.text_field); '
                f'{nearest(self._field, schema.names)}its columns{named} are {names}.'
            )
        if schema.names.count(self._field) > 1:
            raise UsageError(
                f'{self._path}: has several columns {self._field!r}; rename all but one.'
            )
        kind = schema.field(self._field).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        texts = ('string', 'large_string', 'string_view', 'binary', 'large_binary', 'binary_view')
        if str(kind) not in texts:
            raise UsageError(
                f'{self._path}: the column {self._field!r} (config.data.text_field) has '
                f'{kind}, not text.'
            )

    def __len__(self) -> int:
        return int(self._borders[-1])

    def __getitem__(self, row: int) -> bytes:
        """The text of a row.

        Raises:
          UsageError: it has none, or cannot be read.
        """
        group = int(np.searchsorted(self._borders, row, side='right')) - 1
        try:
            with self._lock:
                if group != self._group:
                    texts = self._file.read_row_group(group, columns=[self._field])
                    self._texts, self._group = texts[self._field], group
                text = self._texts[row - int(self._borders[group])].as_py()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UsageError(f'{self._path}, row {row + 1}: cannot be read ({error}).') from error
        if text is None:
            raise UsageError(f'{self._path}, row {row + 1}: nothing in the column {self._field!r}.')
        return text.encode('utf-8', 'replace') if isinstance(text, str) else text
