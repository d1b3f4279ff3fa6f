"""Examples of a data set: JSON lines with the fields that are needed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longmem_jax.data.stored_files import read_whole
from longmem_jax.errors import UsageError
from longmem_jax.untrusted.json_file import whole_characters
from longmem_jax.untrusted.schema import shown


def read_examples(
    path: Path, fields: Mapping[str, type | tuple[type, ...]]
) -> list[dict[str, Any]]:
    """The objects of a file, as `numbered_examples`, without the numbers of their lines."""
    return [example for _, example in numbered_examples(path, fields)]


def numbered_examples(
    path: Path, fields: Mapping[str, type | tuple[type, ...]]
) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a file, maybe packed (.gz, .xz), one per line, with the numbers of their lines.

    Lines count from 1; blank ones are skipped. `fields` are those that every object must have, with
    their types; others are kept as they are.

    Raises:
      UsageError: the file cannot be read, has no examples, or a line is something else; the message
        names the line and the field.
    """
    lines = read_whole(path).decode('utf-8', 'replace').split('\n')
    examples = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            example = whole_characters(json.loads(line), line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f'{path}:{number}: not a line of JSON ({error}).') from error
        if not isinstance(example, dict):
            raise UsageError(f'{path}:{number}: not an object: {line[:80]!r}.')
        require_fields(example, fields, f'{path}:{number}')
        examples.append((number, example))
    if not examples:
        raise UsageError(f'{path}: has no examples.')
    return examples


def require_fields(example: Any, fields: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    """Raises `UsageError` unless `example` is an object with all of `fields` of their types."""
    found = str(sorted(example))[:500] if isinstance(example, dict) else shown(example)
    for name, kind in fields.items():
        if not isinstance(example, dict) or name not in example:
            raise UsageError(f'{where}: no field {name!r}; it has {found}.')
        kinds = kind if isinstance(kind, tuple) else (kind,)
        # A bool is an int for Python, but a label `true` is not the label 1.
        wrong = isinstance(example[name], bool) and bool not in kinds
        if wrong or not isinstance(example[name], kinds):
            names = ' or '.join(each.__name__ for each in kinds)
            raise UsageError(f'{where}: {name} = {shown(example[name])}: must be {names}.')
