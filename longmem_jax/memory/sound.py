"""What must hold of an `Entry` before anything is built from it.

One that is wrong would fail elsewhere, also where others look through the names of all memories.
"""

import dataclasses
import inspect
from typing import Any

import flax.linen as nn

from longmem_jax.contract import PLACES, Entry, Graft, LayerType, Recipes, fields_of
from longmem_jax.errors import no_field, unknown
from longmem_jax.views import View

# The attributes of an entry that are records.
RECORDS = {'layer': LayerType, 'recipe': Recipes, 'graft': Graft | None, 'view': View}
SET = ('settings', 'normalize', 'shared')  # by the model, in every layer
# How the model calls the methods of a layer.
CALLS = {
    'initial_state': (('batch_size',), {}),
    '__call__': (('x', 'state', 'segment'), {'train': False}),
    'open_segment': (('state', 'batch_size'), {}),
    'extend': (('x', 'cache', 'index', 'count'), {}),
    'close_segment': (('state', 'cache', 'count'), {}),
}


def problem_of(entry: Entry) -> str:
    """What is wrong with an entry, and what to write; '' = nothing is."""
    for name, kind in RECORDS.items():
        if not isinstance(value := getattr(entry, name), kind):
            wanted = kind if isinstance(kind, type) else Graft
            return f'{name} = {_shown(value)}: must be a contract.{wanted.__name__}(...)'
    if entry.place not in PLACES:
        return unknown('place', entry.place, PLACES)
    module = entry.layer.module
    if not (isinstance(module, type) and issubclass(module, nn.Module)):
        return f'layer.module = {_shown(module)}: must be a class derived from flax.linen.Module'
    return (
        _of_module(module, entry.place)
        or _of_recipes(entry.recipe)
        or _of_toys(entry)
        or _of_functions(entry)
    )


def _of_module(module: type, place: str) -> str:
    own = {each.name for each in dataclasses.fields(module)}
    if lacking := [name for name in SET if name not in own]:
        return (
            f'{module.__name__} has no {", ".join(lacking)}: declare settings: ModelSettings, '
            'normalize: Callable[[jax.Array], jax.Array] and shared: Any, which the model sets'
        )
    for field in fields_of(module):
        if field.default is dataclasses.MISSING:
            return (
                f'{module.__name__}.{field.name}: has no default; write the value of the paper: '
                f'{field.name}: {getattr(field.type, "__name__", field.type)} = ...'
            )
    for name, (arguments, named) in CALLS.items() if place != 'around' else ():
        method: Any = getattr(module, name, None)
        if method is None:
            return f'{module.__name__} has no {name}, see contract.MemoryLayer'
        taken = inspect.signature(method)
        try:
            taken.bind(None, *arguments, **named)
        except TypeError:
            wanted = ', '.join((*arguments, *(f'*, {each}' for each in named)))
            return f'{module.__name__}.{name}{taken}: must take (self, {wanted})'
    return ''


def _of_recipes(recipe: Recipes) -> str:
    by_name: dict[str, Any] = recipe.by_name
    for name, make in by_name.items():
        if not callable(make):
            return (
                f'recipe {name!r} = {_shown(make)}: must be a function of contract.Scale that returns a '
                'contract.Recipe'
            )
    return ''


def _of_toys(entry: Entry) -> str:
    """Fields of the toy and of its variants that the layer does not have."""
    module, known = entry.layer.module, entry.fields()
    # A toy of what stands around blocks also has fields of the attention layer inside.
    if entry.place == 'around':
        return ''
    of = {'toy': entry.toy} | {f'variant {name!r}': part for name, part in entry.variants.items()}
    for what, fields in of.items():
        for name in fields:
            if name not in known and hasattr(module, name):
                value = getattr(module, name)
                return (
                    f'{module.__name__}.{name} is no field, since it has no type; write {name}: '
                    f'{type(value).__name__} = {_shown(value)}'
                )
            if name not in known:
                return f'{what}: {no_field(module.__name__, name, known)}'
    return ''


def _of_functions(entry: Entry) -> str:
    """What is told of the fields, asked about the defaults; it must not fail where others ask."""
    layer, fields = entry.layer, entry.defaults()
    asked = dict(losses=(fields,), extra=(fields,)) | (
        dict(reach=(fields, 128)) if layer.reach is not None else {}
    )
    for name, given in asked.items():
        try:
            getattr(layer, name)(*given)
        except Exception as error:
            return (
                f'layer.{name}: {type(error).__name__}: {error}; it is called with the fields '
                f'{fields}'[:600]
                + (' and the tokens of a segment' if name == 'reach' else '')
            )
    return ''


def _shown(value: Any) -> str:
    """A value, or the name of a class or function."""
    return getattr(value, '__name__', '') or repr(value)[:60]
