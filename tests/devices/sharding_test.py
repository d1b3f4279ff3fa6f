"""Meshes of devices."""

import jax
import numpy as np
from jax.experimental import mesh_utils

from longmem_jax.devices import sharding


def test_a_mesh_that_divides_a_side_of_a_torus_is_made(monkeypatch):
    """JAX makes none by itself: 256 x 4 chips of a slice of 8 x 8 x 16 need one side in two parts."""
    create = mesh_utils.create_device_mesh

    def refuse(*given, allow_split_physical_axes=False, **named):
        if not allow_split_physical_axes:
            raise NotImplementedError(
                'Failed to find assignment for logical_axis_index 2 of size 4'
            )
        return create(*given, **named)

    sizes = dict(data=-1, tensor=2)
    wanted = sharding.make_mesh(sizes, jax.devices()[:4])
    monkeypatch.setattr(jax, 'make_mesh', refuse)
    monkeypatch.setattr(mesh_utils, 'create_device_mesh', refuse)
    mesh = sharding.make_mesh(sizes, jax.devices()[:4])
    assert mesh.shape == wanted.shape and mesh.axis_types == wanted.axis_types
    np.testing.assert_array_equal(mesh.device_ids, wanted.device_ids)
