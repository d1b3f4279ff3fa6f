"""Encoders of lifelong learners: a BERT's vectors, keys and dropout, and what is refused."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.errors import UsageError
from longmem_jax.lifelong import encoders, heads, span_head
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Inputs, Rows

GOLDENS = Path(__file__).parents[1] / 'goldens'
TINY = dict(encoders.SMALL) | dict(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)


def quiet(line):
    pass


def tiny(dropout=0.0, length=8):
    return encoders.untrained(encoders.small_model(30, length, TINY), dropout=dropout)


def texts(rows, length=8):
    tokens = np.zeros((len(rows), length), np.int32)
    valid = np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], valid[i, : len(row)] = row, True
    return Inputs(jnp.asarray(tokens), jnp.asarray(valid), jnp.zeros_like(jnp.asarray(tokens)))


def test_a_folder_gives_the_vectors_of_the_reference():
    arrays = dict(np.load(GOLDENS / 'bert' / 'caseA.npz'))
    length = arrays['in/tokens'].shape[1]
    encoder = encoders.from_folder(str(GOLDENS / 'bert' / 'hf'), length, report=quiet)
    params = encoder.init(jax.random.key(0))
    inputs = Inputs(
        jnp.asarray(arrays['in/tokens']),
        jnp.asarray(arrays['in/attention_mask'] == 1),
        jnp.asarray(arrays['in/token_type_ids']),
    )
    found = jax.jit(lambda p: encoder.encode(p, inputs, None))(params)
    np.testing.assert_allclose(found.pooled, arrays['out/pooled'], atol=1e-5)
    key = jax.jit(lambda p: encoder.key_of(p, inputs))(params)
    np.testing.assert_allclose(key, found.tokens[:, 0], atol=1e-6)
    assert key.shape == (len(inputs.tokens), encoder.width) and key.dtype == jnp.float32


def test_dropout_is_by_the_key():
    encoder = tiny(dropout=0.3)
    params = encoder.init(jax.random.key(0))
    assert isinstance(params, dict)
    encode = jax.jit(encoder.encode)
    inputs = texts([[1, 2, 3], [4, 5]])
    keys = [jax.random.key(i) for i in (1, 1, 2)]
    one, again, other = (encode(params, inputs, key).pooled for key in keys)
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-3
    plain = encode(params, inputs, None).pooled
    assert np.abs(one - plain).max() > 1e-3
    np.testing.assert_array_equal(plain, encode(params, inputs, None).pooled)


def test_padding_changes_nothing():
    encoder = tiny()
    params = encoder.init(jax.random.key(0))
    encode = jax.jit(lambda inputs: encoder.encode(params, inputs, None).pooled)
    alone = encode(texts([[1, 2, 3]], length=3))
    np.testing.assert_allclose(encode(texts([[1, 2, 3], [4] * 8]))[:1], alone, atol=1e-6)


@pytest.mark.slow
def test_networks_of_every_head_have_losses_and_keys():
    encoder = encoders.untrained(encoders.small_model(30, 16, TINY), dtype='bfloat16')
    tokens = np.asarray([[2, 5, 6, 3, 7, 3, 65535, 65535]] * 2, np.uint16)
    types = np.asarray([[0, 0, 0, 0, 1, 1, 0, 0]] * 2, np.uint8)
    made = [
        (heads.Classes(33), np.asarray([1, 2], np.int32)),
        (span_head.SpanHead(4), np.asarray([[[1, 2]], [[-1, -1]]], np.int16)),
        (
            heads.Candidates(np.asarray([[8, 3], [9, 3]], np.uint16)),
            heads.choose_from(np.asarray([0, 1]), np.asarray([[1], [0]])),
        ),
    ]
    for head, answer in made:
        network = Network(encoder, head)
        params = network.init(jax.random.key(0))
        rows = jax.tree.map(jnp.asarray, Rows(tokens, types, answer))
        losses, gradient = jax.jit(
            lambda p, network=network, rows=rows: (
                network.losses(p, rows),
                jax.grad(lambda p: network.loss(p, rows, jnp.ones(2, bool)))(p),
            )
        )(params)
        assert losses.shape == (2,) and losses.dtype == jnp.float32
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
        keys = jax.jit(network.keys)(params['encoder'], rows)
        assert keys.shape == (2, 16) and keys.dtype == jnp.float32


def test_refused():
    with pytest.raises(UsageError, match='is a decoder'):
        encoders.from_folder(str(GOLDENS / 'gpt2' / 'hf'), 4)
    with pytest.raises(UsageError, match='reads texts of at most'):
        encoders.from_folder(str(GOLDENS / 'bert' / 'hf'), 10_000)
