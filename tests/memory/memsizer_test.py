"""MemSizer: how its maps begin, and memory keys that are not trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import longmem_jax
from configs.memsizer_wikitext103 import get_config
from longmem_jax.errors import UsageError
from longmem_jax.training.optimizer import make_optimizer


def layer(**fields):
    sizes = dict(d_model=64, num_heads=4, segment_length=8, num_slots=16, init_std=0.05)
    return longmem_jax.MemSizer(**sizes, **fields)


def maps(**fields):
    """Parameters of the three maps of a layer at its start."""
    made = layer(**fields)
    x = jnp.zeros((1, 8, 64))
    init = jax.jit(lambda: made.init(jax.random.key(0), x, made.start(1)))
    return init()['params']['inner']['maps']


@pytest.mark.parametrize('query_scale, write_scale', [(32.0, 1.0), (8.0, 8.0)])
def test_maps_begin_with_the_gains_of_the_release(query_scale, write_scale):
    found = maps(query_scale=query_scale, write_scale=write_scale)
    for name, outputs, scale in (
        ('query', 64, query_scale),
        ('left', 16, write_scale),
        ('right', 64, write_scale),
    ):
        # Xavier's uniform values, a = gain * sqrt(6 / (inputs + outputs)).
        largest = scale**-0.5 * np.sqrt(6 / (64 + outputs))
        kernel = found[name]['kernel']
        np.testing.assert_allclose(np.abs(kernel).max(), largest, rtol=0.02, err_msg=name)
        np.testing.assert_allclose(kernel.std(), largest / np.sqrt(3), rtol=0.07, err_msg=name)


def test_maps_may_begin_like_all_others():
    found = maps(query_scale=0.0, write_scale=0.0)
    for name in ('query', 'left', 'right'):
        np.testing.assert_allclose(found[name]['kernel'].std(), 0.05, rtol=0.1, err_msg=name)


def test_frozen_keys_keep_their_first_values():
    params = {'block_0': {'attention': {'maps': maps()}}}
    optimizer = make_optimizer(get_config('frozen').optimizer, 10, params)
    gradient = jax.tree.map(jnp.ones_like, params)
    # After the warm-up's first step of zero.
    state, update = jax.jit(optimizer.init)(params), jax.jit(optimizer.update)
    for _ in range(3):
        updates, state = update(gradient, state, params)
    moved = jax.tree.map(lambda update: float(jnp.abs(update).max()), updates)
    moved = moved['block_0']['attention']['maps']
    assert max(jax.tree.leaves(moved['query'])) == 0
    assert min(jax.tree.leaves(moved['left'])) > 0


def test_only_t2r_is_converted():
    with pytest.raises(UsageError, match='add memory=t2r'):
        get_config('convert=RUN')


def test_the_scale_passes_2_to_31_tokens():
    """Sums are read over the square root of all tokens, however many they are."""
    made, length = layer(carry=True), 8
    x = jax.random.normal(jax.random.key(1), (1, length, 64))
    params = jax.jit(lambda: made.init(jax.random.key(0), x, made.start(1)))()

    @jax.jit
    def read(tokens):
        count = jnp.asarray([[[tokens, 0]]], jnp.float32)  # and what rounding has cut off it
        start = made.start(1)
        return made.apply(params, x, start.replace(memory=start.memory.replace(count=count)))

    y, state, _ = read(2.0**31)
    np.testing.assert_allclose(y / read(2.0**33)[0], 2.0, rtol=1e-5)
    assert np.asarray(state.memory.count, np.float64).sum() == 2**31 + length
