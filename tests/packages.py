"""The packages that the tests see: of those that add names to this library, only their own."""

import importlib.metadata
from typing import Any


def hide_theirs() -> None:
    """Hides installed packages with entry points for this library, such as a memory of yours.

    For this process; packages that a test installs later are seen.
    """
    found = importlib.metadata.distributions
    theirs = {str(_place(package)) for package in found() if _adds_names(package)}

    def distributions(**options: Any) -> Any:
        return (package for package in found(**options) if str(_place(package)) not in theirs)

    importlib.metadata.distributions = distributions


def _place(package: Any) -> Any:
    """The folder of its metadata."""
    return getattr(package, '_path', None) or package.locate_file('')


def _adds_names(package: Any) -> bool:
    """Whether a package, which is not this library, has entry points of one of its groups."""
    if '[longmem_jax.' not in (package.read_text('entry_points.txt') or ''):
        return False
    name = package.metadata['Name'] or ''
    return name.replace('_', '-') != 'longmem-jax'
