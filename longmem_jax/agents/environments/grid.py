"""What the grid worlds share: the four moves, the 3x3 cells around the agent, steps that were taken."""

import jax
import jax.numpy as jnp
import numpy as np

ACTIONS = ('up', 'down', 'left', 'right')
# Row and column that an action adds, int [4, 2]. Rows run downward.
STEPS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)], np.int32)
# Row and column of the nine cells of a view, relative to its middle, int [3, 3, 2].
AROUND = np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1], indexing='ij'), -1).astype(np.int32)


def ahead(position: jax.Array, action: jax.Array) -> jax.Array:
    """The cell, int32 [2], that an action, a place in `ACTIONS`, leads to from `position` if
    nothing stands there.
    """
    return position + jnp.asarray(STEPS)[action]


def view(position: jax.Array) -> jax.Array:
    """Rows and columns of the nine cells around a position, int32 [3, 3, 2]."""
    return position + jnp.asarray(AROUND)


def same(cells: jax.Array, position: jax.Array) -> jax.Array:
    """Which cells, int32 [..., 2], are the one at `position`, int32 [2]: bool [...]."""
    return jnp.all(cells == position, -1)
