"""Data sets of TFDS and of the Hugging Face hub, as documents."""

import importlib
from typing import Any

from longmem_jax.data.documents import Document
from longmem_jax.errors import UsageError, require_extra
from longmem_jax.untrusted.library import library_errors

TEXT_FIELDS = ('text', 'book_text', 'content', 'document', 'article')


def _text(example: dict[str, Any], field: str, name: str) -> bytes:
    """The text of an example: `field`, or the first of `TEXT_FIELDS` that it has."""
    for candidate in (field,) if field else TEXT_FIELDS:
        if candidate in example:
            value = example[candidate]
            return value if isinstance(value, bytes) else str(value).encode()
    raise UsageError(
        f'config.data.name = {name!r}: no field {field or TEXT_FIELDS}; the fields are '
        f'{sorted(example)}. Name one: --config.data.name={name}:FIELD.'
    )


class _Examples:
    """The examples of a random-access table as documents."""

    def __init__(self, table: Any, name: str, field: str):
        self._table, self._name, self._field = table, name, field

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Document:
        with library_errors(f'{self._name}[{index}]: cannot be read; the files are damaged'):
            example = self._table[index]
        return Document(f'{self._name}[{index}]', _text(example, self._field, self._name))


def tfds_source(name: str, split: str) -> _Examples:
    """The texts of a TFDS data set 'NAME' or 'NAME/CONFIG'.

    Append ':FIELD' if the text field has another name.

    Raises:
      UsageError: as in `tfds_table`.
    """
    name, _, field = name.partition(':')
    return _Examples(tfds_table(name, split), name, field)


def tfds_table(name: str, split: str) -> Any:
    """The examples of a TFDS data set; once prepared, it is read without TensorFlow (array_record).

    Raises:
      UsageError: no such set or split, one that must be prepared and TensorFlow is missing, or TFDS
        itself is missing.
    """
    with require_extra('data', f'config.data.name = {name!r}: TFDS'):
        import tensorflow_datasets as tfds
        from array_record.python.array_record_module import ArrayRecordReader

    if not name:
        raise UsageError('config.data.name is empty: set it to a TFDS data set, such as pg19.')
    try:
        builder = tfds.builder(name, file_format='array_record')
    except tfds.core.registered.DatasetNotFoundError as error:
        raise UsageError(f'config.data.name = {name!r}: TFDS has no such data set.') from error
    except ValueError as error:  # a malformed name, no such config, or another file format
        raise UsageError(
            f'config.data.name = {name!r}: {str(error).splitlines()[0]} (read as array_record: '
            'prepare it with --file_format=array_record, or point TFDS_DATA_DIR elsewhere).'
        ) from error
    except Exception as error:  # what the reader of dataset_info.json lets through
        raise damaged(name, error) from error
    if split not in builder.info.splits:
        try:
            importlib.import_module('tensorflow')
        except ImportError as error:
            raise UsageError(
                f'config.data.name = {name!r}: not prepared in {builder.data_dir}; preparing needs '
                "TensorFlow and the network once: pip install 'longmem_jax[tfds]'."
            ) from error
        try:
            builder.download_and_prepare(file_format='array_record')
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f'config.data.name = {name!r}: TFDS could not prepare it ({reason}).'
            ) from error
    if split not in builder.info.splits:
        raise UsageError(
            f'config.data.name = {name!r}: no split {split!r}; the splits are '
            f'{list(builder.info.splits)}.'
        )
    try:
        table, info = builder.as_data_source(split=split), builder.info.splits[split]
        for path, wanted in zip(info.filepaths, info.shard_lengths, strict=True):
            # TFDS believes its description, and reads empty examples where a file has fewer.
            count = ArrayRecordReader(str(path)).num_records()
            if count != wanted:
                raise ValueError(f'{path} has {count:,} examples, {wanted:,} were prepared')
    except Exception as error:  # an array_record that is cut, empty or gone
        raise damaged(name, error) from error
    return table


def damaged(name: str, error: Exception) -> UsageError:
    """The error for files of a TFDS data set that cannot be read."""
    reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
    return UsageError(
        f'config.data.name = {name!r}: its files are damaged ({reason}); delete them and prepare the '
        'data set again.'
    )


def huggingface_source(name: str, split: str) -> _Examples:
    """A data set 'NAME' or 'NAME,CONFIG' of the Hugging Face hub, or a folder that `datasets` can
    load. Append ':FIELD' if the text field has another name.

    Raises:
      UsageError: the package `datasets` is missing, or the set cannot be loaded.
    """
    with require_extra('hf', "config.data.source = 'huggingface'"):
        datasets = importlib.import_module('datasets')
    name, _, field = name.partition(':')
    if not name:
        raise UsageError('config.data.name is empty: set it to a Hugging Face data set.')
    try:
        table = datasets.load_dataset(*name.split(','), split=split)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f'config.data.name = {name!r}: cannot be loaded from the Hugging Face hub ({reason}).'
        ) from error
    return _Examples(table, name, field)
