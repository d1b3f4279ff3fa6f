"""`examples/minimal.py` against the full layers: three segments, padding, and documents that start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import longmem_jax
from examples import minimal
from longmem_jax.segment import Segment

BATCH, LENGTH, WIDTH, HEADS, MEMORY = 2, 4, 16, 2, 6
SIZES = dict(d_model=WIDTH, num_heads=HEADS, segment_length=LENGTH, init_std=0.4)


def kernels(tree):
    """The kernels of the projections, and all other leaves, by their names."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        names = [key.key for key in path]
        found[names[-2] if names[-1] == 'kernel' else names[-1]] = leaf
    found['relative'] = found.pop('project', None)
    return found


CASES = {
    'transformer_xl': (
        lambda: longmem_jax.TransformerXL(**SIZES, memory_length=MEMORY),
        minimal.transformer_xl,
        lambda: minimal.empty_window(BATCH, MEMORY, WIDTH),
    ),
    'infini': (
        lambda: longmem_jax.InfiniAttention(**SIZES),
        minimal.infini_attention,
        lambda: minimal.empty_memory(BATCH, HEADS, WIDTH // HEADS),
    ),
}


@pytest.mark.parametrize('name', CASES)
def test_a_page_gives_the_numbers_of_the_full_layer(name):
    make, read, empty = CASES[name]
    layer, random = make(), np.random.default_rng(0)
    xs = jnp.asarray(random.normal(size=(3, BATCH, LENGTH, WIDTH)), jnp.float32)
    state, ours = layer.start(BATCH), empty()
    params = jax.jit(layer.init)(jax.random.key(1), xs[0], state)
    params = jax.tree.map(lambda leaf: leaf + 0.1 * random.normal(size=leaf.shape), params)
    params = jax.tree.map(jnp.float32, params)
    full, short = jax.jit(layer.apply), jax.jit(read)
    tokens = jnp.zeros((BATCH, LENGTH), jnp.int32)
    for number, x in enumerate(xs):
        valid = jnp.arange(LENGTH)[None] < jnp.asarray([[LENGTH], [LENGTH - number]])
        start = jnp.asarray([number == 2, number == 0])
        wanted, state, _ = full(params, x, state, valid=valid, start=start)
        found, ours = short(kernels(params), x, ours, Segment(tokens, valid, start))
        difference = jnp.where(valid[..., None], found - wanted, 0.0)
        np.testing.assert_allclose(difference, 0.0, atol=2e-5, err_msg=f'segment {number}')
        assert np.abs(wanted).max() > 0.1
