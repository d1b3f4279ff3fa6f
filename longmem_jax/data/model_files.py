"""The small files of a pretrained model: those of its folder, or what a GGUF file has instead."""

from pathlib import Path
from typing import Any

from longmem_jax.data import gguf_tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.untrusted import json_file
from longmem_jax.untrusted.gguf_file import is_gguf


def is_model(path: Path) -> bool:
    """Whether a path is a folder or a GGUF file."""
    return path.is_dir() or (is_gguf(path) and path.is_file())


def has(model: Path, name: str) -> bool:
    """Whether there is such a file; a GGUF file has all of `gguf_tokenizer.FILES`."""
    return name in gguf_tokenizer.FILES if is_gguf(model) else (model / name).exists()


def read(model: Path, name: str, where: str = '', largest: int = json_file.LARGEST) -> bytes:
    """The content of a file that is there; arguments and errors as `json_file.read_bytes`."""
    if is_gguf(model):
        return gguf_tokenizer.read(model, name)
    return json_file.read_bytes(model / name, where, largest=largest)


def settings(model: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file; {} where there is no such file.

    Raises:
      UsageError: it cannot be read, or is something else.
    """
    if not has(model, name):
        return {}
    found = json_file.parse(read(model, name), str(model / name))
    if not isinstance(found, dict):
        raise UsageError(f'{model / name}: must be a JSON object.')
    return found
