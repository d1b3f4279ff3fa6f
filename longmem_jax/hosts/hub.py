"""Models and grafts of the Hugging Face hub, downloaded unless they are in its cache."""

import re
from pathlib import Path

from longmem_jax.errors import UsageError
from longmem_jax.files import looked_for
from longmem_jax.hosts.graft_file import FILE

PATTERNS = ['*.json', '*.safetensors', '*.model', '*.txt', '*.jinja']
# Copies of the weights for other programs, in folders or under the name of Mistral's own.
OTHER_COPIES = ['*/*', 'consolidated*']


def graft(source: str) -> Path:
    """The file of a graft, fetched from the hub where there is none of that name."""
    path = Path(source).expanduser()
    if path.exists() or path.suffix == '.safetensors':
        return path
    folder = fetch(source, [FILE], [])
    if not (folder / FILE).is_file():
        raise UsageError(f'{source}: has no {FILE}, as --mode=export --graft --push writes.')
    return folder / FILE


def fetch(name: str, patterns: list[str] = PATTERNS, others: list[str] = OTHER_COPIES) -> Path:
    """The folder of a model of the hub, its files downloaded unless they are in the cache."""
    name, _, revision = name.partition('@')
    named = re.fullmatch(r'[\w.-]+(/[\w.-]+)?', name) and re.fullmatch(r'[\w./-]*', revision)
    if not named or name.startswith('.'):
        there = 'is a file of another kind' if Path(name).is_file() else 'no such file or folder'
        raise UsageError(f'{name}: {there}{looked_for(name)}, and it is not a name on the hub.')
    try:
        import huggingface_hub
    except ImportError as error:
        raise UsageError(
            f'{name}: no such file or folder{looked_for(name)}. To fetch a model of that name from '
            "the Hugging Face hub: pip install 'longmem_jax[hosts]'"
        ) from error
    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision or None, allow_patterns=patterns, ignore_patterns=others
        )
        return Path(folder)
    except Exception as error:  # the library lets errors of several others through
        raise UsageError(
            f'{name}: no such file or folder{looked_for(name)}, and the Hugging Face hub gave no model '
            f'of that name ({type(error).__name__}: {str(error).strip().splitlines()[0]}). Without '
            'network, give a folder.'
        ) from error
