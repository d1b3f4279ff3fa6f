"""Where kernels run: on every device of a mesh for its own lanes and heads.

Programs for devices that have no kernel are refused. Tests set `INTERPRETED`, so that Pallas's
interpreter runs the kernels: correct, and far too slow to train.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from longmem_jax.devices.sharding import RULES
from longmem_jax.kernels.only_on import only_on

# Platform whose kernels all devices run, by Pallas's interpreter; '' = none.
INTERPRETED = ''
NAMES = {'tpu': 'TPUs', 'cuda': 'NVIDIA GPUs'}
REFUSAL = (
    "kernels = 'fused': is for {known}, and this program is for the platform {{platform}}; set "
    "kernels='plain', whose numbers are the same up to rounding."
)


def on_devices(
    function: Callable[..., jax.Array],
    arrays: Mapping[str, jax.Array | None],
    along: Mapping[str, tuple[str, ...]],
    lanes: int,
    heads: int,
) -> jax.Array:
    """`function(**arrays)` on every device for its lanes and heads.

    Args:
      function: of arrays with fewer lanes and heads, to one [lanes, heads, ...].
      arrays: by name; None stays None.
      along: by name, what the first axes of an array are: 'lanes' or 'heads'. An axis of one row is
        the same for all of them.
      lanes, heads: how many there are; axes of the mesh that do not divide them are not used.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = [axis for axis in mesh.axis_names if axis not in set(getattr(mesh, 'manual_axes', ()))]
    if math.prod(mesh.shape[axis] for axis in axes) == 1 and len(axes) == len(mesh.axis_names):
        return function(**arrays)
    split = {
        'lanes': _dividing(mesh, axes, 'lanes', lanes),
        'heads': _dividing(mesh, axes, 'heads', heads),
    }
    given = {name: array for name, array in arrays.items() if array is not None}
    specs = {
        name: P(
            *(
                split[what] if array.shape[axis] > 1 else None
                for axis, what in enumerate(along[name])
            )
        )
        for name, array in given.items()
    }
    missing = {name: None for name in arrays if name not in given}
    return jax.shard_map(
        lambda given: function(**given, **missing),
        in_specs=(specs,),
        out_specs=P(split['lanes'], split['heads']),
        axis_names=set(axes),
        check_vma=False,
    )(given)


def _dividing(mesh: Any, axes: list[str], logical: str, size: int) -> tuple[str, ...] | None:
    """Those of `axes` that `logical` is split over; None if they do not divide `size`."""
    names = tuple(axis for axis in RULES[logical] if axis in axes)
    return names if names and size % math.prod(mesh.shape[name] for name in names) == 0 else None


def compiled(functions: Mapping[str, Callable[..., Any]], plan: Any, *arrays: Any) -> Any:
    """`function(plan, *arrays)` of the platform that the program is for; see `INTERPRETED`."""
    if INTERPRETED in functions:
        function, plan = functions[INTERPRETED], dataclasses.replace(plan, interpret=True)
        return function(plan, *arrays)
    known = ' and '.join(NAMES[platform] for platform in functions)
    ours = {name: functools.partial(function, plan) for name, function in functions.items()}
    return only_on(ours, *arrays, message=REFUSAL.format(known=known))
