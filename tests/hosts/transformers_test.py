"""Exported folders open in transformers, with the same outputs; skipped without it and torch."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.hosts import export, hosts, model_fields
from longmem_jax.segment import Segment
from tests import toys
from tests.hosts.export_test import grafted
from tests.hosts.hosts_test import attributes, folder_of
from tests.parity_systems.hosts import NAMES

torch = pytest.importorskip('torch', reason="needs pip install 'longmem_jax[test-torch]'")
transformers = pytest.importorskip('transformers')

LENGTH = 20
TOKENS = np.random.default_rng(0).integers(1, 61, (2, LENGTH))


def theirs(folder):
    """Logits of the folder in transformers; of an encoder, its last hidden vectors."""
    given = json.loads((folder / 'config.json').read_text())
    kind = getattr(transformers, given['architectures'][0])
    model, notes = kind.from_pretrained(folder, output_loading_info=True)
    assert not notes['missing_keys'] and not notes.get('mismatched_keys'), notes
    with torch.no_grad():
        return model.eval()(torch.asarray(TOKENS))[0].float().numpy(), notes['unexpected_keys']


def ours(model, params):
    module, tokens = hosts.make(model, LENGTH), jnp.asarray(TOKENS, jnp.int32)
    every = jnp.ones(tokens.shape, bool)
    if model.kind == 'text_encoder':
        return module.apply({'params': params}, tokens, every, 0 * tokens, train=False)[0]
    state = module.apply({'params': params}, 2, method='initial_state')
    segment = Segment(tokens, every, jnp.ones((2,), bool))
    return module.apply({'params': params}, segment, state, train=False)[0]


def assert_same(model, params, folder):
    wanted, unexpected = theirs(folder)
    np.testing.assert_allclose(ours(model, params), wanted, atol=1e-4 * np.abs(wanted).max())
    return unexpected


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_a_model_trained_here(name, tmp_path):
    """With attributes and names that we wrote, not those of a folder that was read."""
    model = hosts.find(folder_of(name)).model
    params = toys.parameters(hosts.make(model, 4), 3)
    export.save(tmp_path / 'out', model, params, shard_bytes=40_000)
    assert not assert_same(model, params, tmp_path / 'out')


@pytest.mark.slow
@pytest.mark.parametrize(
    'name, changes',
    [
        ('llama', dict(rope_scaling=dict(type='linear', factor=2.0), rope_parameters=None)),
        (
            'qwen2',
            dict(
                max_position_embeddings=128,
                rope_parameters=dict(
                    rope_type='yarn',
                    rope_theta=10000.0,
                    factor=4.0,
                    original_max_position_embeddings=32,
                ),
            ),
        ),
        ('llama', dict(attention_bias=True, mlp_bias=True, hidden_act='gelu_pytorch_tanh')),
        ('qwen3', dict(attention_bias=True, num_key_value_heads=1, tie_word_embeddings=False)),
        (
            'qwen2',
            dict(
                layer_types=['sliding_attention', 'full_attention'],
                use_sliding_window=True,
                sliding_window=5,
            ),
        ),
        ('gpt_neox', dict(use_parallel_residual=False, hidden_act='gelu_new')),
        ('gpt_neox', dict(attention_bias=False, tie_word_embeddings=True)),
        ('gpt2', dict(scale_attn_weights=False, n_inner=24, activation_function='relu')),
        ('gpt_neo', dict(attention_types=[[['local'], 2]], attention_layers=['local'] * 2)),
        ('mistral', dict(sliding_window=None, num_key_value_heads=4)),
    ],
)
def test_options(name, changes, tmp_path):
    given = attributes(name, **changes)
    given = {key: value for key, value in given.items() if value is not None or key in changes}
    if given.get('rope_parameters', 0) is None:
        del given['rope_parameters']
    model = model_fields.model_of(given, 'config.json')
    params = toys.parameters(hosts.make(model, 4), 3)
    # Initial values hide mistakes: biases of zero, norms of one.
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), params
    )
    export.save(tmp_path / 'out', model, params)
    assert_same(model, params, tmp_path / 'out')


@pytest.mark.slow
def test_a_host_with_a_memory_opens_as_the_host(tmp_path):
    host, model, _, params = grafted()
    export.save(tmp_path / 'out', model, params, like=host)
    wanted, _ = theirs(folder_of('gpt2'))
    found, unexpected = theirs(tmp_path / 'out')
    np.testing.assert_array_equal(found, wanted)
    assert all(name.startswith('longmem.') for name in unexpected)
