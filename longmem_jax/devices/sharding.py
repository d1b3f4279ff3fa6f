"""Devices: the mesh, the one table of logical axes, and the shardings of everything that is trained.

Parameters carry logical axis names; the table says which mesh axis shards each. An unknown name or a
dimension that does not divide is refused here, since JAX would replicate silently or fail late.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from longmem_jax.errors import UsageError

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
    """Sizes of all mesh axes, one -1 filled with the devices that are left.

    Raises:
      UsageError: an unknown axis, two -1, or a product that is not the number of devices.
    """
    given = dict(sizes)
    unknown = sorted(set(given) - set(MESH_AXES))
    if unknown:
        raise UsageError(f'config.mesh = {given}: unknown {unknown}, allowed are {MESH_AXES}.')
    full = {axis: int(given.get(axis, 1)) for axis in MESH_AXES}
    free = [axis for axis, size in full.items() if size == -1]
    rest = math.prod(size for size in full.values() if size != -1)
    bad = [axis for axis, size in full.items() if size < 1 and size != -1]
    if bad or len(free) > 1 or num_devices % rest or (not free and rest != num_devices):
        raise UsageError(
            f'config.mesh = {given}: the product must be {num_devices}, the devices found; '
            'set one axis to -1 to fill it.'
        )
    if free:
        full[free[0]] = num_devices // rest
    return full


def make_mesh(sizes: dict[str, int], devices: Any = None) -> Mesh:
    """A mesh of `devices` (default: all) with automatic axes; sizes as in `mesh_sizes`."""
    devices = jax.devices() if devices is None else devices
    full = mesh_sizes(sizes, len(devices))
    return jax.make_mesh(
        tuple(full.values()),
        tuple(full),
        axis_types=(AxisType.Auto,) * len(full),
        devices=devices,
    )


def num_shards(mesh: Mesh, logical: str) -> int:
    """Parts that a dimension with this logical axis is cut into."""
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
    """Arrays with the lanes on `axis`."""
    return NamedSharding(mesh, P(*(None,) * axis, RULES['lanes']))


def memory_rows(size: int, parts: int) -> int:
    """`parts` again, the parts that `size` rows of a memory are cut into.

    Raises:
      UsageError: parts that do not divide it.
    """
    if size % parts:
        raise UsageError(
            f'config.mesh.memory = {parts}: must divide the {size} rows of a sharded memory.'
        )
    return parts


def memory_shardings(mesh: Mesh, memory: Any) -> Any:
    """Shardings of memories: by lanes, and leaves named `rows_...` by their rows (axis 2) as well.

    Args:
      mesh: devices.
      memory: abstract memories, every leaf [batch, ...].
    """
    parts = mesh.shape['memory']

    def place(path, leaf):
        name = str(getattr(path[-1], 'name', '')) if path else ''
        if parts == 1 or not name.startswith('rows_'):
            return lanes_sharding(mesh)
        memory_rows(leaf.shape[2], parts)
        return NamedSharding(mesh, P(RULES['lanes'], None, 'memory'))

    return jax.tree_util.tree_map_with_path(place, memory)


def replicated(mesh: Mesh) -> NamedSharding:
    """Arrays that every device holds whole."""
    return NamedSharding(mesh, P())


def parameter_shardings(mesh: Mesh, boxed: Any) -> Any:
    """Shardings of parameters.

    Args:
      mesh: devices.
      boxed: abstract parameters as `init` gives them, with their logical axes.

    Returns:
      A tree like the unboxed parameters.

    Raises:
      UsageError: a dimension that its mesh axes do not divide, by name.
    """
    faults = []

    def place(path, leaf):
        if not isinstance(leaf, nn.LogicallyPartitioned):
            return replicated(mesh)
        names, shape = leaf.names, leaf.value.shape
        if len(names) != len(shape):
            raise ValueError(f'{jax.tree_util.keystr(path)}: axes {names} for shape {shape}')
        partition = spec(names)
        for name, size in zip(names, shape, strict=True):
            parts = num_shards(mesh, name) if name else 1
            if size % parts:
                faults.append(
                    f'{jax.tree_util.keystr(path)} {shape}: axis {name!r} of {size} does not '
                    f'divide into {parts} parts (config.mesh)'
                )
        return NamedSharding(mesh, partition)

    is_box = lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)  # noqa: E731
    shardings = jax.tree_util.tree_map_with_path(place, boxed, is_leaf=is_box)
    if faults:
        raise UsageError('These parameters cannot be sharded:\n  ' + '\n  '.join(faults))
    return shardings


def like_parameters(tree: Any, params: Any, shardings: Any, mesh: Mesh) -> Any:
    """Shardings of an optimizer state: leaves that mirror a parameter lie as it does.

    Args:
      tree: abstract optimizer state.
      params, shardings: abstract parameters and theirs.
      mesh: devices.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    known = {
        tuple(map(str, path)): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(flat, jax.tree.leaves(shardings), strict=True)
    }

    def place(path, leaf):
        path = tuple(map(str, path))
        for start in range(len(path)):
            shape, sharding = known.get(path[start:], (None, None))
            if shape == leaf.shape:
                return sharding
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(place, tree)


def own_lanes(mesh: Mesh, num_lanes: int) -> range:
    """The lanes that this process feeds.

    Raises:
      UsageError: lanes that the mesh does not divide, or that are not one run for this process.
    """
    parts = num_shards(mesh, 'lanes')
    if num_lanes % parts:
        raise UsageError(
            f'{num_lanes} lanes over {parts} devices (config.mesh data x fsdp): must divide.'
        )
    indices = lanes_sharding(mesh).addressable_devices_indices_map((num_lanes,)).values()
    lanes = sorted({lane for (index,) in indices for lane in range(num_lanes)[index]})
    if lanes != list(range(lanes[0], lanes[-1] + 1)):
        raise UsageError('config.mesh: the lanes of a process must be neighbours; put data first.')
    return range(lanes[0], lanes[-1] + 1)


def from_processes(mesh: Mesh, tree: Any, axis: int) -> Any:
    """Global arrays from each process's own lanes (numpy), which lie on `axis`."""
    sharding = lanes_sharding(mesh, axis)
    return jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), tree
    )


def start_processes(coordinator: str, num_processes: int, process_id: int) -> None:
    """Joins the processes of a run (`jax.distributed`); on TPU pods all arguments may be empty.

    Args:
      coordinator: 'host:port' of process 0, or '' to let JAX find the cluster.
      num_processes, process_id: -1 where JAX finds them.

    Raises:
      UsageError: no cluster was found and none was given, or it is given by halves.
    """
    given = [bool(coordinator), num_processes > 0, process_id >= 0]
    if any(given) and not all(given):
        raise UsageError(
            '--coordinator, --num_processes and --process_id go together: '
            f'given were {coordinator!r}, {num_processes}, {process_id}.'
        )
    if jax.config.jax_platforms == 'cpu':
        jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    try:
        if all(given):
            jax.distributed.initialize(coordinator, num_processes, process_id)
        else:
            jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f'--distributed: no cluster could be joined ({error}). On machines that JAX does not '
            'know give --coordinator=host:port --num_processes=N --process_id=K.'
        ) from error
