"""Long memories for Transformers in JAX/Flax: every memory as a layer, a model, and a command.

`from longmem_jax import InfiniAttention` gives a memory as a layer of any model (`standalone.Layer`),
`longmem_jax.nnx` the same for `flax.nnx`, and `longmem_jax.load(workdir)` the model of a run;
`python -m longmem_jax.main` trains, evaluates and generates.
Every memory of the registry has a name here, that of its class; `make_layer` takes the registry's name.
`register` adds a memory, a task, a source of data, an environment, a lifelong method or a subject.
Names are looked up when they are first used: `import longmem_jax` imports no library and sets nothing.
"""

import importlib
from typing import Any


def _names() -> list[str]:
    from longmem_jax.standalone import class_names

    return sorted({*class_names(), 'Layer', 'load', 'make_layer', 'register'})


def __getattr__(name: str) -> Any:
    if name == '__version__':
        return importlib.import_module('importlib.metadata').version('longmem_jax')
    if name == '__all__':
        return _names()
    if name == 'load':  # what trains is imported only where it is used
        return importlib.import_module('longmem_jax.commands.load').load
    if name == 'register':
        return importlib.import_module('longmem_jax.registry').register
    # `from longmem_jax import MODULE` asks here too, before it imports the module.
    if name == 'make_layer' or name[:1].isupper():
        module = importlib.import_module('longmem_jax.standalone')
        if name in ('Layer', 'make_layer'):
            return getattr(module, name)
        if (memory := module.class_names().get(name)) is not None:
            return module.by_name(memory)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *_names(), '__version__'})
