"""A configuration by its name, such as `quickstart:memory=infini`, or by the path of its file."""

import ast
import difflib
import importlib
import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_collections

from longmem_jax.errors import UsageError, require_type

CONFIGS = Path(__file__).parents[1] / 'configs'


def found(given: str, argument: str) -> Path:
    """The file of a path; else the package's config of that name, or of the path `configs/NAME.py`.

    Args:
      given: the name or path.
      argument: as it was typed, for the message.

    Raises:
      UsageError: it is not there, or makes no config.
    """
    path = Path(given)
    named = re.fullmatch(r'(?:configs/)?([a-z]\w*?)(?:\.py)?', given)
    if not path.is_file() and named and (packaged := CONFIGS / f'{named[1]}.py').is_file():
        return packaged
    if not path.is_file():
        existing = {
            other.stem: other
            for other in (*CONFIGS.glob('[a-z]*.py'), *path.parent.glob('[a-z]*.py'))
        }
        near = [
            name if existing[name].parent == CONFIGS else str(existing[name])
            for name in difflib.get_close_matches(path.stem, existing)
        ]
        raise UsageError(
            f'{argument}: there is no file or name {given}; '
            + (f'did you mean {" or ".join(map(repr, near))}? ' if near else '')
            + 'a config is a file, or a name such as quickstart; --mode=list lists them'
        )
    if not _defines_get_config(path):
        raise UsageError(
            f'{argument}: {path} has no function get_config; a config is a Python file with one, '
            'such as configs/quickstart.py, or the config.json of a run'
        )
    return path


def _defines_get_config(path: Path) -> bool:
    """Whether a file is Python that defines or imports the name `get_config`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        # A mistake in a config is shown where Python finds it.
        return path.suffix == '.py'
    names = {
        getattr(node, field, None) for node in ast.walk(tree) for field in ('name', 'asname', 'id')
    }
    return not names.isdisjoint({'get_config', '*'})


def require_sections(config: Any) -> None:
    """Raises `UsageError` if a file made something other than a whole configuration."""
    from longmem_jax.config.base import base

    needed = 'get_config must return what longmem_jax.config.base.base() makes, with its own values'
    if not isinstance(config, ml_collections.ConfigDict):
        raise UsageError(f'--config: get_config returned {config!r}; {needed}.')
    missing = [section for section in base() if section not in config]
    if missing:
        raise UsageError(f'--config: the config has no {", ".join(missing)}; {needed}.')


def configure(
    config: str | Path | ml_collections.ConfigDict, changes: Mapping[str, Any] | None = None
) -> ml_collections.ConfigDict:
    """A configuration, with changed fields.

    Args:
      config: what `--config=` takes: 'quickstart', 'quickstart:memory=infini,tiny', the path of a file
        with `get_config`, or of the `config.json` of a run; or a configuration, which stays as it is.
      changes: path of a field to its value, such as {'train.num_steps': 200}.

    Raises:
      UsageError: there is no such config, variant or field, or a value has another type.
    """
    from longmem_jax.config import overrides
    from longmem_jax.config.saved import saved_config

    needed = "a name such as 'quickstart', the path of a file, or a configuration"
    require_type('config', config, str | os.PathLike | ml_collections.ConfigDict, needed)
    require_type(
        'changes', changes, Mapping | None, "a dictionary, such as {'train.num_steps': 200}"
    )
    if isinstance(config, os.PathLike):
        config = os.fsdecode(config)
    if isinstance(config, ml_collections.ConfigDict):
        made = ml_collections.ConfigDict(config).copy_and_resolve_references()  # a frozen one too
    elif Path(config).suffix == '.json':
        made = saved_config(config)
    else:
        name, _, variants = str(config).partition(':')
        made = _get_config(found(name, f'config {name!r}'))(*[variants] * bool(variants))
    require_sections(made)
    made.lock()
    for path in changes or {}:
        require_type('a path in changes', path, str, "text, such as 'train.num_steps'")
    plain = {path: value.item() if getattr(value, 'shape', None) == () else value
             for path, value in (changes or {}).items()}  # fmt: skip
    texts = {
        path: value if isinstance(value, str) else repr(value) for path, value in plain.items()
    }
    overrides.apply(made, list(texts.items()))
    return made


def _get_config(path: Path) -> Any:
    """The function of a file."""
    if path.parent == CONFIGS:
        return importlib.import_module(f'longmem_jax.configs.{path.stem}').get_config
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f'{path}: is no Python file.')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config
