"""What a stream keeps of Expire-Span between the tokens of an open segment."""

import flax.struct
import jax


@flax.struct.dataclass
class ExpireSpanCache:
    """What an open segment reads, and will write when it closes.

    Attributes:
      old_keys, old_values: [batch, kv_heads, capacity - position_length, head_dim].
      old_spans: float32 [batch, capacity - position_length].
      keys, values: [batch, kv_heads, position_length + segment_length, head_dim].
      spans: float32 [batch, position_length + segment_length].
      hidden: [batch, segment_length, d_model], inputs of this layer so far.
      distance, count, window_count: as in the state.
    """

    old_keys: jax.Array
    old_values: jax.Array
    old_spans: jax.Array
    keys: jax.Array
    values: jax.Array
    spans: jax.Array
    hidden: jax.Array
    distance: jax.Array
    count: jax.Array
    window_count: jax.Array
