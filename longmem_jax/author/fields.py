"""Fields and parameters as the author of a memory declares them."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from longmem_jax.contract import Fields, ModelSettings
from longmem_jax.errors import UsageError, unknown, visible
from longmem_jax.layers import initializers
from longmem_jax.problems import above as must_be_above
from longmem_jax.problems import at_least, between, one_of

# Logical axis of a dimension by its name; other dimensions are not sharded.
AXES = {'d_model': 'embed', 'heads': 'heads', 'kv_heads': 'kv_heads', 'head_dim': 'head_dim'}
TAKEN = ('d_model', 'heads', 'kv_heads', 'head_dim')
SIZES = ('d_model', 'heads', 'num_heads', 'kv_heads', 'head_dim')  # of the model, by name


def field(
    default: Any,
    words: str,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    among: Iterable[str] | None = None,
    divides: str = '',
    share: str = '',
) -> Any:
    """A field of a memory's sub-config.

    Args:
      default: the paper's value.
      words: what it means, for `--mode=list` and the documentation.
      least: the smallest value that is allowed.
      above: a value that it must be above.
      below: a value that it must be below; goes with `least` or `above`.
      among: all values that are allowed.
      divides: field of `config.model` that it must divide.
      share: size of the model that 0 stands for: 'head_dim', 'num_heads', 'd_model'.

    Raises:
      UsageError: `below` has no lower end, or a config cannot hold the default.
    """
    if not isinstance(default, (bool, int, float, str, tuple, type(None))):
        shown = visible(repr(default), 60)
        raise UsageError(
            f'field {words!r}: default = {shown}: must be a number, True or False, a text, or a tuple '
            'of these'
        )
    if below is not None and least is None and above is None:
        raise UsageError(f'field {words!r}: below = {below} needs least or above, the lower end')
    among = among and tuple(among)
    rules = dict(least=least, above=above, below=below, among=among, divides=divides, share=share)
    return dataclasses.field(default=default, metadata={'words': words, **rules})


def require_declared(layer: type) -> None:
    """Raises `UsageError` if a field that a class declares has no default or no type."""
    types = inspect.get_annotations(layer)
    for name, kind in types.items():
        if name not in vars(layer) and 'ClassVar' not in str(kind):
            shown = getattr(kind, '__name__', kind)
            raise UsageError(
                f'{layer.__name__}.{name}: has no default; write {name}: {shown} = field(..., words), '
                "with the paper's value"
            )
    for name, value in vars(layer).items():
        if isinstance(value, dataclasses.Field) and name not in types:
            shown = type(value.default).__name__
            raise UsageError(
                f'{layer.__name__}.{name}: has no type; write {name}: {shown} = field(...)'
            )


def require_names(layer: type) -> None:
    """Raises `UsageError` if `divides` or `share` of a field name what models do not have."""
    known = dict(share=SIZES, divides=[each.name for each in dataclasses.fields(ModelSettings)])
    for declared in dataclasses.fields(layer):
        if 'words' in declared.metadata and declared.name in TAKEN:
            where = f'{layer.__name__}.{declared.name}'
            raise UsageError(f'{where}: is a size of the model; give the field another name.')
        for rule, allowed in known.items():
            if (other := declared.metadata.get(rule)) and other not in allowed:
                where = f'{layer.__name__}.{declared.name}'
                raise UsageError(f'{where}: {unknown(rule, other, allowed)}')


def problems(layer: type, fields: Fields, model: Any) -> list[str]:
    """What the declared rules say against the values of a sub-config; one line per field."""
    found = []
    for declared in dataclasses.fields(layer):
        rules, name = declared.metadata, declared.name
        if 'words' not in rules or fields[name] is None:
            continue
        least, above, below = rules['least'], rules['above'], rules['below']
        if below is not None:
            low, end = (above, '(') if least is None else (least, '[')
            found += between(fields, low, below, name, ends=f'{end})')
        if below is None and least is not None:
            found += at_least(fields, least, name)
        if below is None and above is not None:
            found += must_be_above(fields, above, name)
        if rules['among'] is not None:
            found += one_of(fields, **{name: rules['among']})
        divided = rules['divides']
        if divided and fields[name] and model[divided] % fields[name]:
            found.append(f'{name} = {fields[name]}: must divide {divided} = {model[divided]}')
    return found


def documented(layer: type) -> str:
    """The docstring of a memory with its fields in a block `Attributes:`."""
    lines = [
        f'      {declared.name}: {declared.metadata["words"]}.'
        for declared in dataclasses.fields(layer)
        if 'words' in declared.metadata
    ]
    return f'{(layer.__doc__ or "").rstrip()}\n\n    Attributes:\n' + '\n'.join(lines) + '\n    '


@dataclasses.dataclass(frozen=True)
class Param:
    """A parameter that becomes an array when the module is set up; see `param`."""

    dims: tuple[str | int, ...]
    init: Callable[..., Any] | None

    def made(self, owner: nn.Module, name: str, sizes: Mapping[str, int], init: Any) -> Any:
        """The parameter of `owner`, float32 as all parameters."""
        for dim in self.dims:
            if isinstance(dim, str) and dim not in sizes:
                what = unknown('dimension', dim, sorted(sizes))
                raise UsageError(f'{type(owner).__name__}.{name}: {what}, and any number')
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)
        if min(shape, default=1) < 1:
            raise UsageError(
                f'{type(owner).__name__}.{name}: shape {shape}: sizes must be at least 1'
            )
        axes = tuple(AXES.get(dim) if isinstance(dim, str) else None for dim in self.dims)
        boxed = initializers.with_axes(self.init or init, axes)
        return owner.param(name, boxed, shape, jnp.float32)


def param(*dims: str | int, init: Callable[..., Any] | None = None) -> Any:
    """A parameter; its logical axes follow from the names of its dimensions.

    Args:
      *dims: 'd_model', 'heads', 'kv_heads', 'head_dim', the name of an int field, or a number.
      init: `(key, shape, dtype) -> array`, as in `jax.nn.initializers`; None = as kernels of the model.
    """
    return Param(dims, init)
