"""`attend` by the fused kernel: which `Rules` it can follow, and what they are to it."""

import math

import jax
import jax.numpy as jnp

from longmem_jax.attention.rules import Rules
from longmem_jax.attention.weight_dropout import WeightDropout
from longmem_jax.contract import Fields
from longmem_jax.errors import UsageError
from longmem_jax.kernels.fused_attention import ByDistance, attend_fused, draw_seeds
from longmem_jax.kernels.fused_plan import NEVER_SINCE

# Positions that add something to single keys, not by distance.
POSITIONS_WITHOUT = ('alibi_beyond',)


def position_problem(fields: Fields) -> str:
    """What keeps a layer with the field `position` from the fused kernel; '' = nothing."""
    position = fields['position']
    if position not in POSITIONS_WITHOUT:
        return ''
    return f'position = {position!r} adds a bias to single keys, which it does not have'


def is_whole(rules: Rules) -> bool:
    """Whether a whole segment is read: streams have an offset per lane, and stay plain."""
    return isinstance(rules.offset, int)


def attend(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    rules: Rules,
    dropout: WeightDropout | None = None,
) -> jax.Array:
    """`attention.attend` for a whole segment; arguments and result as there.

    Raises:
      UsageError: rules that the kernel does not have.
    """
    unknown = [name for name in ('mask', 'bias') if getattr(rules, name) is not None]
    unknown += [] if rules.causal else ['causal = False']
    if (
        unknown
        or not isinstance(rules.offset, int)
        or queries.dtype not in (jnp.bfloat16, jnp.float32)
    ):
        raise UsageError(
            f'the fused attention has no {", ".join(unknown) or "float64, and no streams"}: it is '
            'causal, with scores by distance and windows, in bfloat16 or float32; use '
            "kernels='plain'"
        )
    scale = 1.0 / math.sqrt(queries.shape[3]) if rules.scale is None else rules.scale
    factor = jnp.asarray(scale, queries.dtype)
    relative, bias = rules.relative, rules.distance_bias
    by_distance = ByDistance(
        offset=rules.offset,
        queries=None if relative is None else relative.queries * factor,
        table=None if relative is None else relative.table.astype(queries.dtype),
        bias=bias,
    )
    index = jnp.arange(keys.shape[2], dtype=jnp.int32)[None]
    since, until = index - rules.offset, jnp.full_like(index, NEVER_SINCE)
    if rules.window:
        until = since + rules.window
    if rules.first is not None:
        since = jnp.where(index >= rules.first[:, None], since, NEVER_SINCE)
    return attend_fused(
        queries * factor,
        keys,
        values,
        since=since,
        until=until,
        by_distance=by_distance,
        dropout=0.0 if dropout is None else dropout.rate,
        seeds=None if dropout is None else draw_seeds(dropout.key, queries.shape[:2]),
    )
