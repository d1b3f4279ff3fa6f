"""A configuration out of JSON: the `config.json` that every run leaves in its workdir.

Such a file may come from anywhere, so fields and types are compared with those of `config.base` and of
the layers before anything reads them.
"""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import ml_collections

from longmem_jax import registry
from longmem_jax.config import earlier
from longmem_jax.config.base import FOLLOWS, base
from longmem_jax.config.names import is_name
from longmem_jax.config.sections import followed, follows, sections
from longmem_jax.errors import UsageError, nearest, say
from longmem_jax.files import write_json
from longmem_jax.models.kinds import KINDS
from longmem_jax.problems import is_possible
from longmem_jax.untrusted import json_file
from longmem_jax.untrusted.schema import shown

SECTIONS = ('data', 'model', 'train')  # a Hugging Face folder has a config.json too, without them
# Sections whose fields depend on what is used; the others have exactly those of `config.base`.
OPEN = ('config.data.task', 'config.evaluate.model', 'config.train.loss_weights')
DEPTH = 8  # of sections and tuples in each other
CHECKSUM = 'crc32'  # of the other fields
PACKAGES = 'packages'  # that provide names in the configuration


def saved_config(path: str | Path) -> ml_collections.ConfigDict:
    """The configuration of a training, by its workdir or the `config.json` there.

    Raises:
      UsageError: no such file, or it is something else.
    """
    path = Path(path).expanduser()
    named = path.suffix == '.json' and not path.is_dir()
    file = path if named else path / 'config.json'
    if not file.exists():
        raise UsageError(f'{path}: no config.json there; give the workdir of a run.')
    content = json_file.read(file, f'{file}: not the configuration of a run')
    return restored(content, str(file))


def write(config: ml_collections.ConfigDict, path: Path) -> None:
    """Writes the `config.json` of a run, with a checksum; an earlier one is replaced as a whole."""
    content = json.loads(config.to_json())
    if used := _packages(content):
        content[PACKAGES] = used
    write_json(path, content | {CHECKSUM: _checksum(content)})


def _packages(content: dict[str, Any]) -> dict[str, str]:
    """Names in a configuration that other packages provide, each with its package and version."""
    provided, used = registry.foreign(), set()
    waiting: list[Any] = [content] if provided else []
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            used |= {*value}
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            used.add(value)
    return {name: provided[name] for name in sorted(used & {*provided})}


def _require_packages(packages: Any, where: str) -> None:
    """Raises `UsageError` unless the packages are there that provide names of a configuration."""
    if not isinstance(packages, dict) or not all(isinstance(p, str) for p in packages.values()):
        raise UsageError(f'{where}: {PACKAGES} = {shown(packages)}: must be names with packages.')
    here = registry.foreign()
    for name, package in packages.items():
        needed, found = (known.partition(' ')[0] for known in (package, here.get(name, '')))
        if name not in here:
            advice = f'it is of the package {package}: pip install {needed}'
            if not needed:
                advice = (
                    'it was added by longmem_jax.register, which must be called first, for example in '
                    'the file of --config='
                )
            raise UsageError(f'{where}: uses {shown(name)}, which is not there; {advice}.')
        if needed and found and needed != found:
            raise UsageError(
                f'{where}: uses {shown(name)} of the package {package}, and here it is of {here[name]}: '
                f'pip uninstall {found}, pip install {needed}.'
            )


def _checksum(content: dict[str, Any]) -> str:
    return f'{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}'


def restored(content: Any, where: str) -> ml_collections.ConfigDict:
    """The configuration that JSON holds.

    Fields that a later version added have their defaults. A field that follows another one in
    `config.base`, and has its value, follows it again, so that overrides do the same as they did with
    the config's own file. A note says if the checksum is that of other values: a file may be edited, but
    a disk may also have changed it.

    Raises:
      UsageError: not a configuration, or it has unknown fields or values of other types.
    """
    if not isinstance(content, dict) or not all(isinstance(content.get(s), dict) for s in SECTIONS):
        raise UsageError(
            f'{where}: not the configuration of a run, which has {", ".join(SECTIONS)}; give the '
            'workdir of a run. A Hugging Face model is used through configs/host.py:path=FOLDER.'
        )
    content = dict(content)
    if (found := content.pop(CHECKSUM, None)) is not None and found != _checksum(content):
        say(f'Note: {where} was changed after the run wrote it.', sys.stderr)
    _require_packages(content.pop(PACKAGES, {}), where)
    config = base(*(name for name in sections() if name in content))
    expected = config.to_dict()
    layers = earlier.defaults_of(content['model'])
    expected['model'] = layers | {name: {} for name in KINDS if name in content['model']}
    checked = _section(content, expected, 'config', where)
    config = ml_collections.ConfigDict(earlier.completed_config(checked))
    for section, field, other, source, instead in (*FOLLOWS, *follows(config)):
        reference = followed(config, other, source, instead)
        if config[section][field] == reference.get():
            config[section][field] = reference
    return config


def _section(given: Any, expected: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    """The fields of a section, each of the type that it has in `expected`."""
    if not isinstance(given, dict):
        raise UsageError(f'{where}: {name} = {shown(given)}: must be a section with fields.')
    if name in OPEN or name in (f'config.model.{kind}' for kind in KINDS):
        return {_name(field, name, where): _plain(given[field], f'{name}.{field}', where)
                for field in given}  # fmt: skip
    values = {}
    is_open = [f'config.{each}' for each, section in sections().items() if section.open]
    for field, value in given.items():
        path = f'{name}.{field}'
        if name in is_open and isinstance(value, dict):
            values[field] = _plain(value, path, where)  # of what is used, which checks it
            continue
        if field not in expected:
            what, other = 'field', ', or the file is of a later version.'
            if name == 'config':
                what, other = 'section', ', or the package that brings it is not installed.'
            raise UsageError(
                f'{where}: {name} has no {what} {shown(field)}; {nearest(field, expected)}a name may be '
                f'mistyped{other}'
            )
        default = expected[field]
        if isinstance(default, dict):
            values[field] = _section(value, default, path, where)
        else:
            values[field] = _value(value, default, path, where)
    return values


def _value(value: Any, default: Any, path: str, where: str) -> Any:
    """`value`, of the type of `default`; JSON has lists for tuples, and may have 1 for 1.0."""
    value = _plain(value, path, where)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(default, float) and number:
        return float(value)
    if default is None or value is None or type(value) is type(default):
        return value
    raise UsageError(
        f'{where}: {path} = {shown(value)}: must be of the type {type(default).__name__}, such as '
        f'{shown(default)}.'
    )


def _plain(value: Any, path: str, where: str, depth: int = 0) -> Any:
    """A value without fields of its own, or an open section; lists become tuples."""
    if depth > DEPTH:
        raise UsageError(f'{where}: {path}: more than {DEPTH} nested lists or sections.')
    if isinstance(value, dict):
        return {_name(field, path, where): _plain(each, f'{path}.{field}', where, depth + 1)
                for field, each in value.items()}  # fmt: skip
    if isinstance(value, list):
        return tuple(_plain(each, path, where, depth + 1) for each in value)
    if not is_possible(value):
        raise UsageError(f'{where}: {path} = {shown(value)}: not a number that a field can have.')
    return value


def _name(field: str, section: str, where: str) -> str:
    """The name of a field of an open section, which must be one that a configuration can have."""
    if not is_name(field):
        raise UsageError(f'{where}: {section}: {shown(field)} cannot be the name of a field.')
    return field
