"""Devices: the mesh, the table of logical axes, and shardings of parameters, memories and data.

Parameters carry logical axis names, and the table maps each to mesh axes. Unknown names and dimensions
that do not divide are refused here, since JAX would replicate silently or fail late.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from longmem_jax.errors import UsageError
from longmem_jax.segment import Tree

MESH_AXES = ('data', 'fsdp', 'tensor', 'memory')

# Logical axis -> mesh axes. Embedding tables are sharded by vocabulary alone: with their width on
# the axis of the lanes, XLA recomputes whole tables on every device.
RULES: dict[str, tuple[str, ...]] = {
    'lanes': ('data', 'fsdp'),
    'vocab': ('tensor',),
    'embed': ('fsdp',),
    'mlp': ('tensor',),
    'heads': ('tensor',),
    'kv_heads': (),
    'slots': ('tensor',),
    'head_dim': (),
    'norm': (),
    'distance': (),
}


def mesh_sizes(sizes: dict[str, int], num_devices: int) -> dict[str, int]:
    """Sizes of all mesh axes, with one -1 replaced by the remaining number of devices.

    Raises:
      UsageError: an unknown axis, two -1, or a product that is not the number of devices.
    """
    sizes = dict(sizes)
    unknown = sorted(set(sizes) - set(MESH_AXES))
    if unknown:
        raise UsageError(f'config.mesh = {sizes}: unknown {unknown}, allowed are {MESH_AXES}.')
    full = {axis: int(sizes.get(axis, 1)) for axis in MESH_AXES}
    free = [axis for axis, size in full.items() if size == -1]
    fixed = math.prod(size for size in full.values() if size != -1)
    invalid = [axis for axis, size in full.items() if size < 1 and size != -1]
    if invalid or len(free) > 1 or num_devices % fixed or (not free and fixed != num_devices):
        raise UsageError(
            f'config.mesh = {sizes}: the product must be {num_devices}, the number of devices found; '
            'set one axis to -1 to fill it.'
        )
    if free:
        full[free[0]] = num_devices // fixed
    return full


def make_mesh(sizes: dict[str, int], devices: Any = None) -> Mesh:
    """A mesh of `devices` (default: all) with automatic axes; sizes as in `mesh_sizes`."""
    devices = jax.devices() if devices is None else devices
    full = mesh_sizes(sizes, len(devices))
    shape, types = tuple(full.values()), (AxisType.Auto,) * len(full)
    try:
        return jax.make_mesh(shape, tuple(full), axis_types=types, devices=devices)
    except NotImplementedError:  # one side of the torus must be divided: 256 x 4 of 8 x 8 x 16
        placed = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
        return Mesh(placed, tuple(full), axis_types=types)


def num_shards(mesh: Mesh, logical: str) -> int:
    """Number of shards of a dimension with this logical axis."""
    return math.prod(mesh.shape[axis] for axis in RULES[logical])


def spec(names: tuple[str | None, ...]) -> P:
    """The partition of an array whose axes have these logical names (None = not sharded).

    Raises:
      ValueError: a name that is not in the table.
    """
    unknown = [name for name in names if name is not None and name not in RULES]
    if unknown:
        raise ValueError(f'logical axes {unknown} are not in sharding.RULES: {sorted(RULES)}')
    return P(*(RULES[name] if name and RULES[name] else None for name in names))


def lanes_sharding(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Sharding of arrays whose lanes are on `axis`."""
    return NamedSharding(mesh, P(*(None,) * axis, RULES['lanes']))


def memory_rows(size: int, shards: int) -> int:
    """Returns `shards` after checking that it divides the `size` entries of a memory.

    Raises:
      UsageError: it does not divide `size`.
    """
    if size % shards:
        raise UsageError(
            f'config.mesh.memory = {shards}: must divide the {size} entries of a sharded memory.'
        )
    return shards


def abstract(tree: Any, places: Any) -> Any:
    """Shapes and dtypes of a tree with shardings: one for all leaves, or a tree of them."""
    if isinstance(places, jax.sharding.Sharding):
        places = jax.tree.map(lambda _: places, tree)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        tree,
        places,
    )


def memory_shardings(mesh: Mesh, memory: Any) -> Any:
    """Shardings of memories.

    By lanes, and leaves named `rows_...` also by their entries (axis 2).
    """
    shards = mesh.shape['memory']

    def shard(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = str(getattr(path[-1], 'name', '')) if path else ''
        if shards == 1 or not name.startswith('rows_'):
            return lanes_sharding(mesh)
        memory_rows(leaf.shape[2], shards)
        return NamedSharding(mesh, P(RULES['lanes'], None, 'memory'))

    return jax.tree_util.tree_map_with_path(shard, memory)


def replicated(mesh: Mesh) -> NamedSharding:
    """Sharding of arrays that every device holds in full."""
    return NamedSharding(mesh, P())


def parameter_shardings(mesh: Mesh, boxed: Any) -> Any:
    """Shardings of parameters, a tree like them; `boxed` has their logical axes, as from `init`.

    Raises:
      UsageError: mesh axes that do not divide a dimension; the message names all of them.
    """
    problems = []

    def shard(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        if not isinstance(leaf, nn.LogicallyPartitioned):
            return replicated(mesh)
        names, shape = leaf.names, leaf.value.shape
        if len(names) != len(shape):
            raise ValueError(f'{jax.tree_util.keystr(path)}: axes {names} for shape {shape}')
        partition = spec(names)
        for name, size in zip(names, shape, strict=True):
            shards = num_shards(mesh, name) if name else 1
            if size % shards:
                problems.append(
                    f'{jax.tree_util.keystr(path)} {shape}: axis {name!r} of {size} does not '
                    f'divide into {shards} shards (config.mesh)'
                )
        return NamedSharding(mesh, partition)

    is_box = lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)  # noqa: E731
    shardings = jax.tree_util.tree_map_with_path(shard, boxed, is_leaf=is_box)
    if problems:
        raise UsageError('These parameters cannot be sharded:\n  ' + '\n  '.join(problems))
    return shardings


def like_parameters(tree: Any, params: Any, shardings: Any, mesh: Mesh) -> Any:
    """Shardings of an optimizer state: leaves that mirror a parameter are sharded like it."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    by_path = {
        tuple(map(str, path)): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(flat, jax.tree.leaves(shardings), strict=True)
    }

    def shard(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        path = tuple(map(str, path))
        for start in range(len(path)):
            shape, sharding = by_path.get(path[start:], (None, None))
            if shape == leaf.shape:
                return sharding
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(shard, tree)


def own_lanes(mesh: Mesh, num_lanes: int) -> range:
    """The lanes that this process feeds.

    Raises:
      UsageError: the mesh does not divide the lanes, or those of this process are not contiguous.
    """
    shards = num_shards(mesh, 'lanes')
    if num_lanes % shards:
        raise UsageError(
            f'{num_lanes} lanes: config.mesh data x fsdp = {shards} devices must divide them.'
        )
    indices = lanes_sharding(mesh).addressable_devices_indices_map((num_lanes,)).values()
    lanes = sorted({lane for index in indices if index for lane in range(num_lanes)[index[0]]})
    if lanes != list(range(lanes[0], lanes[-1] + 1)):
        raise UsageError('config.mesh: the lanes of a process must be contiguous; put data first.')
    return range(lanes[0], lanes[-1] + 1)


def from_processes(mesh: Mesh, tree: Tree, axis: int) -> Tree:
    """Global arrays from the lanes of each process (numpy arrays with lanes on `axis`)."""
    sharding = lanes_sharding(mesh, axis)
    return jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), tree
    )


def require_one_process(what: str) -> None:
    """Raises `UsageError` if several processes run `what`, the beginning of a sentence."""
    if jax.process_count() > 1:
        raise UsageError(
            f'{what} runs in one process, not in {jax.process_count()}; leave out --distributed.'
        )


def require_auto(x: jax.Array) -> None:
    """Raises where `x` is sharded with explicit axes, for which JAX wants every sharding spelled out."""
    sharding = jax.typeof(x).sharding
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    if explicit and any(axis is not None for axis in sharding.spec):
        raise ValueError(
            f'x is sharded as {sharding.spec} over a mesh of Explicit axes: Auto axes are needed. Make '
            'the mesh with jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * n)'
        )
