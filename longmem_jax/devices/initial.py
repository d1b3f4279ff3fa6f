"""Makes the first arrays of a run: parameters, and what begins with them."""

from collections.abc import Callable
from typing import Any

import jax

# XLA for GPUs makes all draws of one shape in a single kernel. For the parameters of twelve layers that
# kernel is so long that it takes two minutes to compile, and four times as long for twice the layers.
OPTIONS = {'gpu': {'xla_disable_hlo_passes': 'multi_output_fusion'}}


def arrays(make: Callable[[], Any], shardings: Any = None) -> Any:
    """The arrays of `make()`, compiled as one program, where `shardings` (a tree like theirs) says."""
    options = OPTIONS.get(jax.default_backend())
    made = jax.jit(make, out_shardings=shardings, compiler_options=options)()
    # Where there is no room for them, a wait for all raises; one for a single array may never end.
    return jax.block_until_ready(made)
