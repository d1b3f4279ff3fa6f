"""Low-rank parts of linear maps (LoRA: Hu et al., 2022), added to a model from outside.

A kernel W that is kept gets a part `scale A B` of small rank, which is trained. The three are parameters
next to the kernel, `.../query/lora/{a,b,scale}`, so a map that becomes a pure function takes them along.
`intercept` adds them to what the map returns; the modules do not know of them. B begins at zero: then
the model is exactly the one without.
"""

import contextlib
import math
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp

from longmem_jax.errors import UsageError
from longmem_jax.layers.projections import HeadsIn, HeadsOut
from longmem_jax.segment import Tree

NAME = 'lora'


def _into_heads(x: jax.Array, parts: dict[str, jax.Array]) -> jax.Array:
    """[..., length, d_model] to [..., heads, length, head_dim]."""
    return jnp.einsum('...lr,rhk->...hlk', x @ parts['a'], parts['b'])


def _out_of_heads(x: jax.Array, parts: dict[str, jax.Array]) -> jax.Array:
    """[..., heads, length, head_dim] to [..., length, d_model]."""
    return jnp.einsum('...hlk,hkr->...lr', x, parts['a']) @ parts['b']


def _dense(x: jax.Array, parts: dict[str, jax.Array]) -> jax.Array:
    """[..., inputs] to [..., outputs]."""
    return x @ parts['a'] @ parts['b']


# Type of a map -> (axes of its kernel that are inputs, A and B applied to what it reads).
MAPS: dict[type, tuple[int, Callable[..., jax.Array]]] = {
    HeadsIn: (1, _into_heads),
    HeadsOut: (2, _out_of_heads),
    nn.Dense: (1, _dense),
}


def intercept(
    next_method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
) -> Any:
    """For `nn.intercept_methods`: adds the low-rank part of every map that has one."""
    module = context.module
    if context.method_name != '__call__' or type(module) not in MAPS:
        return next_method(*args, **kwargs)
    if not module.has_variable('params', NAME):
        return next_method(*args, **kwargs)
    if getattr(module, 'norm', 'none') != 'none':  # which is of the sum
        unbound, variables = module.unbind()
        return unbound.apply({'params': merged(variables['params'])}, *args)
    parts = module.get_variable('params', NAME)
    y = next_method(*args, **kwargs)
    low = {name: parts[name].astype(y.dtype) for name in ('a', 'b')}
    added = MAPS[type(module)][1](args[0].astype(y.dtype), low)
    return y + jax.lax.stop_gradient(parts['scale']).astype(y.dtype) * added


@contextlib.contextmanager
def noting_maps() -> Iterator[dict[str, int]]:
    """Yields the paths of the linear maps called within, each with its kernel's number of input axes."""
    found: dict[str, int] = {}

    def note(next_method: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name == '__call__' and type(context.module) in MAPS:
            found['/'.join(context.module.path)] = MAPS[type(context.module)][0]
        return next_method(*args, **kwargs)

    with nn.intercept_methods(note):
        yield found


def add(
    params: Any, maps: dict[str, int], *, rank: int, alpha: float, targets: str, key: Any
) -> Any:
    """Parameters with low-rank parts next to the kernels of the chosen maps.

    Args:
      params: parameters of a model, boxed with logical axes or not.
      maps: see `noting_maps`.
      rank: of A B.
      alpha: the scale is alpha / rank; 0 = 1.
      targets: pattern that is searched for in the paths of maps.
      key: random key. A is normal with the variance of 1 / inputs, B is zero.

    Returns:
      A tree with the leaves of `params`, and `lora` next to each chosen kernel.

    Raises:
      UsageError: the pattern is found in no path.
    """
    flat = flax.traverse_util.flatten_dict(params, sep='/')
    chosen = {path: inputs for path, inputs in maps.items() if re.search(targets, path)}
    chosen = {path: inputs for path, inputs in chosen.items() if f'{path}/kernel' in flat}
    if not chosen:
        raise UsageError(
            f'config.model.lora.targets = {targets!r}: found in no path of a linear map; the maps are '
            f'{", ".join(sorted(maps))}'
        )
    for path, inputs in chosen.items():
        kernel = flat[f'{path}/kernel']
        shape = nn.unbox(kernel).shape
        axes = kernel.names if isinstance(kernel, nn.LogicallyPartitioned) else (None,) * len(shape)
        width = math.prod(shape[:inputs])
        own = jax.random.fold_in(key, zlib.crc32(path.encode()) & 0x7FFFFFFF)
        a = jax.random.normal(own, (*shape[:inputs], rank), jnp.float32) * width**-0.5
        b = jnp.zeros((rank, *shape[inputs:]), jnp.float32)
        parts = {
            'a': (a, (*axes[:inputs], None)),
            'b': (b, (None, *axes[inputs:])),
            'scale': (jnp.asarray((alpha / rank) if alpha else 1.0, jnp.float32), ()),
        }
        for name, (value, names) in parts.items():
            flat[f'{path}/{NAME}/{name}'] = nn.LogicallyPartitioned(value, names)
    return flax.traverse_util.unflatten_dict(flat, sep='/')


def merged(params: Tree) -> Tree:
    """Parameters of the model without low-rank parts that computes the same: kernel + scale A B.

    Args:
      params: a tree, of a whole model or of one of its modules; returned as it is if it has none.
    """
    flat = flax.traverse_util.flatten_dict(params)
    if not any(NAME in path for path in flat):
        return params
    kept = {path: leaf for path, leaf in flat.items() if NAME not in path}
    for path, leaf in flat.items():
        if path[-2:] != (NAME, 'a'):
            continue
        kernel, at = (*path[:-2], 'kernel'), path[:-1]
        scale = jax.lax.stop_gradient(flat[*at, 'scale'])
        kept[kernel] = kept[kernel] + scale * jnp.tensordot(leaf, flat[*at, 'b'], 1)
    return flax.traverse_util.unflatten_dict(kept)
