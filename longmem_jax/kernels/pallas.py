"""Pallas, imported when the first kernel is built: every command would wait for it otherwise."""

import importlib
import typing
from typing import Any

if typing.TYPE_CHECKING:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from jax.experimental.pallas import triton
else:

    class _Module:
        """A module that is imported when a name of it is first used."""

        def __init__(self, name: str):
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self._name), name)

    pl, pltpu = _Module('jax.experimental.pallas'), _Module('jax.experimental.pallas.tpu')
    triton = _Module('jax.experimental.pallas.triton')

__all__ = ('pl', 'pltpu', 'triton')
