"""Long memories for Transformers in JAX/Flax: every memory as a layer, a model, and a command.

`from longmem_jax import InfiniAttention` gives a memory as a layer of any model (`standalone.Layer`),
`longmem_jax.nnx` the same for `flax.nnx`; `python -m longmem_jax.main` trains, evaluates and generates.
Names are imported when they are first used, so that `import longmem_jax` costs nothing.
"""

import importlib
import importlib.metadata
from typing import Any

__all__ = [
    'AdaptiveSpan',
    'CompressiveTransformer',
    'Dense',
    'ExpireSpan',
    'InfiniAttention',
    'InfinityFormer',
    'Layer',
    'LinearAttention',
    'Local',
    'MemSizer',
    'Memorizing',
    'MemoryTokens',
    'NormalizedXL',
    'ProductKeyMemory',
    'TransformerXL',
    'make_layer',
]


def __getattr__(name: str) -> Any:
    if name == '__version__':
        return importlib.metadata.version('longmem_jax')
    if name in __all__:
        module = importlib.import_module('longmem_jax.standalone')
        return module.NAMED[name] if name in module.NAMED else getattr(module, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, '__version__'})
