"""What the systems share: parameters by name, settings of a layer alone, and whole segments."""

import jax
import jax.numpy as jnp

from longmem_jax.contract import ModelSettings
from longmem_jax.segment import Segment


def parameters_of(arrays):
    """The parameters of a golden, by the authors' names."""
    return {
        name.removeprefix('param/'): jnp.asarray(value)
        for name, value in arrays.items()
        if name.startswith('param/')
    }


def stacked(arrays, number, *names):
    """Inputs of all segments, one array per name."""
    return [jnp.stack([arrays[f'in/{name}_{i}'] for i in range(number)]) for name in names]


def settings_of(d_model, num_heads, head_dim, segment_length, **others):
    """The settings of one layer alone, float32 without dropout."""
    usual = dict(
        d_feed_forward=1, num_layers=1, dropout=0.0, attention_dropout=0.0, init_std=0.02,
        dtype=jnp.dtype('float32'),
    )  # fmt: skip
    sizes = dict(d_model=d_model, num_heads=num_heads, head_dim=head_dim)
    return ModelSettings(**sizes, segment_length=segment_length, **usual | others)


def segment_of(x):
    """A whole segment of vectors [batch, length, ...], without a start."""
    valid = jnp.ones(x.shape[:2], bool)
    return Segment(valid.astype(jnp.int32), valid, jnp.zeros(x.shape[:1], bool))


def read_segments(layer, xs):
    """Reads segment after segment, xs [segments, batch, length, d_model]: outputs and states."""

    def read(state, x):
        y, state, _ = layer(x, state, segment_of(x), train=False)
        return state, (y, state)

    return jax.lax.scan(read, layer.initial_state(xs.shape[1]), xs)[1]
