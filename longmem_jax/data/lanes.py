"""STUB"""
import flax.struct, jax
@flax.struct.dataclass
class Cursor:
    document: jax.Array
    offset: jax.Array
@flax.struct.dataclass
class Batch:
    tokens: jax.Array
    targets: jax.Array
    valid: jax.Array
    start: jax.Array
    num_bytes: jax.Array
    cursor: Cursor
