"""Long memories for Transformers in JAX/Flax: every memory as a layer, a model, and a command.

`from longmem_jax import InfiniAttention` gives a memory as a layer of any model (`standalone.Layer`),
`longmem_jax.nnx` the same for `flax.nnx`. `longmem_jax.train(config, workdir)`, `evaluate`, `generate`,
`score` and `run_mode` do what `python -m longmem_jax.main` does, and `load(workdir)` gives its model.
Every memory of the registry has a name here, that of its class; `make_layer` takes the registry's name.
`register` adds a memory, a task, a source of data, an environment, a lifelong method or a subject.
Names are looked up when they are first used: `import longmem_jax` imports no library and sets nothing.
"""

import importlib
import importlib.util
from typing import Any

# Functions to the modules that have them.
MODULES = {
    'configure': 'config.files',
    **dict.fromkeys(('train', 'evaluate', 'generate', 'score', 'run_mode'), 'commands.api'),
    'load': 'commands.load',
    'Stop': 'reporting.trackers',
    'register': 'registry',
}


def _names() -> list[str]:
    from longmem_jax.named import class_names

    return sorted({*class_names(), *MODULES, 'Layer', 'make_layer'})


def __getattr__(name: str) -> Any:
    if name == '__version__':
        return importlib.import_module('importlib.metadata').version('longmem_jax')
    if name == '__all__':
        return _names()
    if name in MODULES:  # what trains is imported only where it is used
        with importlib.import_module('longmem_jax.errors').require_extra('train'):
            return getattr(importlib.import_module(f'longmem_jax.{MODULES[name]}'), name)
    if name == 'nnx':
        return importlib.import_module('longmem_jax.nnx')
    # `from longmem_jax import MODULE` asks here too, before it imports the module.
    word = name.isidentifier() and not name.startswith('_')
    if not word or (name.islower() and importlib.util.find_spec(f'{__name__}.{name}')):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    if name in ('Layer', 'make_layer'):
        return getattr(importlib.import_module('longmem_jax.standalone'), name)
    module = importlib.import_module('longmem_jax.named')
    if (memory := module.class_names().get(name)) is not None:
        return module.by_name(memory)
    message = f'module {__name__!r} has no attribute {name!r}; {_meant(name)}'.rstrip('; ')
    raise AttributeError(message, name=name)  # without `obj`, or the interpreter repeats it


def _meant(name: str) -> str:
    """The class of a name of configs, such as `infini`, or else what is nearest."""
    from longmem_jax.errors import nearest
    from longmem_jax.memory.registry import LAYERS
    from longmem_jax.named import class_names

    layers = {memory: layer for layer, memory in class_names().items()}
    of_configs = {
        own: layers[memory]
        for memory, entry in LAYERS.items()
        if memory in layers
        for own in (memory, *entry.recipe.by_name)
    }
    own = name.casefold()
    if own not in of_configs:
        return nearest(name, _names())
    shown = f'--config=quickstart:memory={own} --mode=list'
    fields = '' if own in LAYERS else f' With the fields of {own!r}, which {shown} shows.'
    return f'did you mean {of_configs[own]!r}?{fields}'


def __dir__() -> list[str]:
    return sorted({*globals(), *_names(), '__version__', 'nnx'})
