"""Long memories for Transformers in JAX/Flax: every memory as a layer, a model, and a command.

`from longmem_jax import InfiniAttention` gives a memory as a layer of any model (`standalone.Layer`),
`longmem_jax.nnx` the same for `flax.nnx`. `longmem_jax.train(config, workdir)`, `evaluate`, `generate`
and `score` do what `python -m longmem_jax.main` does, and `load(workdir)` gives the model of a run.
Every memory of the registry has a name here, that of its class; `make_layer` takes the registry's name.
`register` adds a memory, a task, a source of data, an environment, a lifelong method or a subject.
Names are looked up when they are first used: `import longmem_jax` imports no library and sets nothing.
"""

import importlib
from typing import Any

# Functions to the modules that have them.
MODULES = {
    'configure': 'config.files',
    **dict.fromkeys(('train', 'evaluate', 'generate', 'score'), 'commands.api'),
    'load': 'commands.load',
    'register': 'registry',
}


def _names() -> list[str]:
    from longmem_jax.standalone import class_names

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
    if name == 'make_layer' or name[:1].isupper():
        module = importlib.import_module('longmem_jax.standalone')
        if name in ('Layer', 'make_layer'):
            return getattr(module, name)
        if (memory := module.class_names().get(name)) is not None:
            return module.by_name(memory)
        near = importlib.import_module('longmem_jax.errors').nearest(name, _names())
        message = f'module {__name__!r} has no attribute {name!r}; {near}'.rstrip('; ')
        raise AttributeError(message, name=name)  # without `obj`, or the interpreter repeats it
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *_names(), '__version__', 'nnx'})
