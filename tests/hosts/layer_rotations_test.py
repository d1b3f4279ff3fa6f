"""SmolLM3, Phi 3, Gemma 3, OLMo 2 and 3: their `config.json`, their files, and memories in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import host as host_config
from longmem_jax.config.model_checks import model_problems
from longmem_jax.errors import UsageError
from longmem_jax.hosts import export, hosts, model_fields, start
from longmem_jax.layers import positions
from longmem_jax.segment import Segment
from tests import toys
from tests.hosts.hosts_test import GOLDENS, copied, folder_of, load, model_of
from tests.parity_systems.hosts import LATER

LENGTH = 12
GEMMA_1B = dict(  # in the spelling of the released file
    model_type='gemma3_text', vocab_size=262144, hidden_size=1152, intermediate_size=6912,
    num_hidden_layers=26, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
    hidden_activation='gelu_pytorch_tanh', max_position_embeddings=32768, rms_norm_eps=1e-6,
    query_pre_attn_scalar=256, rope_theta=1e6, rope_local_base_freq=10000, rope_scaling=None,
    sliding_window=512, sliding_window_pattern=6, attn_logit_softcapping=None,
    final_logit_softcapping=None, cache_implementation='hybrid', eos_token_id=[1, 106],
)  # fmt: skip
PHI_4_MINI = dict(
    model_type='phi3', vocab_size=200064, hidden_size=3072, intermediate_size=8192,
    num_hidden_layers=32, num_attention_heads=24, num_key_value_heads=8, partial_rotary_factor=0.75,
    max_position_embeddings=131072, original_max_position_embeddings=4096, rope_theta=10000.0,
    rope_scaling=dict(type='longrope', short_factor=[1.0] * 48, long_factor=[2] * 48),
    sliding_window=262144, tie_word_embeddings=True, attention_bias=False, mlp_bias=False,
    lm_head_bias=False, full_attn_mod=1, interpolate_factor=1, auto_map={'AutoModel': 'modeling.py'},
    rms_norm_eps=1e-5, hidden_act='silu', embd_pdrop=0.0, resid_pdrop=0.0,
)  # fmt: skip


def read(model, params, text, segment):
    """Logits of a text that is read in segments of so many tokens."""
    module = hosts.make(model, segment)
    apply = jax.jit(lambda *given: module.apply({'params': params}, *given, train=False)[:2])
    state = module.apply({'params': params}, len(text), method='initial_state')
    found = []
    for first in range(0, text.shape[1], segment):
        part = jnp.asarray(text[:, first : first + segment], jnp.int32)
        start = jnp.full((len(text),), first == 0)
        logits, state = apply(Segment(part, jnp.ones(part.shape, bool), start), state)
        found.append(logits)
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize('name', LATER)
def test_two_segments_are_the_whole_text_of_transformers(name):
    with np.load(GOLDENS / name / 'caseA.npz') as file:
        tokens, wanted = file['in/tokens'], file['out/logits']
    host, params, said = load(folder_of(name))
    assert 'new: nothing; ignored: nothing' in said
    found = read(host.model, params, tokens, LENGTH)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize('name', LATER)
def test_a_model_trained_here_becomes_a_host_of_transformers(name, tmp_path):
    pytest.importorskip('transformers')
    from tests.hosts import transformers_test

    model = hosts.find(folder_of(name)).model
    params = toys.parameters(hosts.make(model, 4), 3)
    export.save(tmp_path / 'out', model, params)
    host, again, _ = load(tmp_path / 'out')
    assert not model_fields.differences(host.model, model)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert not transformers_test.assert_same(model, params, tmp_path / 'out')


def test_released_files_of_gemma_and_phi():
    gemma = model_fields.model_of(GEMMA_1B, 'config.json')
    assert gemma.attention[:7] == ('sliding',) * 5 + ('full', 'sliding')
    assert gemma.rotary_bases[:7] == (1e4,) * 5 + (-1, 1e4)
    assert (gemma.rotary_base, gemma.sliding.window, gemma.full.window) == (1e6, 512, 32768)
    assert gemma.both_norms and gemma.scale_embedding and gemma.tie_weights
    phi = model_fields.model_of(PHI_4_MINI, 'config.json')
    assert phi.attention == ('full',) * 32 and phi.full.window == 4096
    assert phi.rotary_factors == (1.0,) * 48 and phi.rotary_share == 0.75
    np.testing.assert_allclose(phi.rotary_gain, np.sqrt(1 + np.log(32) / np.log(4096)))
    longer = model_fields.model_of(PHI_4_MINI, 'config.json', context=8192)
    assert longer.full.window == 8192 and longer.rotary_factors == (2.0,) * 48
    assert (longer.rotary_gain, longer.rotary_original) == (phi.rotary_gain, 0)


def test_a_longer_context_begins_with_the_same_host():
    folder = folder_of('phi3')
    model = host_config.get_config(f'path={folder},memory=none,context=64').model
    plain = hosts.find(folder).plain
    assert model.rotary_factors != plain.rotary_factors and model.full.window == 64
    assert not model_fields.differences(plain, model, skip=start.OF_MEMORY | {'full'})


def test_layers_without_rotation():
    rule = dict(num_hidden_layers=8, no_rope_layers='removed', layer_types='removed')
    assert model_of('smollm3', **rule).rotary_bases == (-1, -1, -1, 0, -1, -1, -1, 0)
    assert model_of('smollm3', **rule, no_rope_layer_interval=2).rotary_bases == (-1, 0) * 4
    assert model_of('smollm3', no_rope_layers=[1, 1]).rotary_bases == ()


def test_windows_of_olmo_are_not_scaled():
    scaled = model_of('olmo3')
    assert scaled.rotary_scaling == 'yarn' and scaled.rotary_bases == (500.0, -1)
    plain = dict(rope_parameters='removed', rope_theta=300.0)
    assert model_of('olmo3', **plain).rotary_bases == ()
    yarn = dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=16)
    assert model_of('olmo3', **plain, rope_scaling=yarn).rotary_bases == (300.0, -1)


def test_texts_within_the_context_are_not_scaled_dynamically():
    plain = dict(rope_type='default', rope_theta=500.0)
    dynamic = dict(rope_type='dynamic', rope_theta=500.0, factor=4.0)
    assert model_of('llama', rope_parameters=dynamic) == model_of('llama', rope_parameters=plain)


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(rotary_bases=(500.0,)), 'one number per layer is needed, 3 in all'),
        (dict(rotary_bases=(500.0, 0, 'x')), 'above 1, 0 = not rotated'),
        (dict(rotary_bases=(500.0, 0, 0.5)), 'above 1, 0 = not rotated'),
        (dict(pre_norm=False), 'both_norms = True: needs pre_norm = True'),
        (dict(output_norm=(True,) * 3), 'both_norms = True: needs'),
        (dict(rotary_scaling='longrope', rotary_factors=(1.0, 'x')), 'each of the 6 rotated pairs'),
    ],
)
def test_fields_that_cannot_be_are_refused(changes, message):
    model = model_of('gemma3_text')
    assert not model_problems(model, 4)
    model.update(changes)
    assert any(message in problem for problem in model_problems(model, 4))


def test_every_pair_is_divided_by_its_own_number():
    plain = positions.rotary_frequencies(6)
    given = dict(scaling='longrope', factor=1.0, original=0, bands=(1.0, 4.0))
    found = positions.scaled_frequencies(plain, 1e4, **given, factors=(1.0, 2.0, 4.0))
    np.testing.assert_array_equal(found, plain / [1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    'name, changes, message',
    [
        (
            'gemma3_text',
            dict(attn_logit_softcapping=50.0),
            'attn_logit_softcapping = 50.0: only None',
        ),
        (
            'gemma3_text',
            dict(query_pre_attn_scalar=24),
            'only the width of a head, 12, is supported',
        ),
        ('gemma3_text', dict(use_bidirectional_attention=True), 'only False, None is supported'),
        (
            'gemma3_text',
            dict(rope_parameters=dict(sliding_attention=dict(rope_type='linear', factor=2.0))),
            "rope_parameters.sliding_attention sets rope_type = 'linear': only 'default'",
        ),
        ('gemma3_text', dict(rope_parameters=dict(full_attention={}, other={})), 'sets other'),
        ('smollm3', dict(no_rope_layers=[1]), '2 numbers are needed, 0 or 1'),
        ('smollm3', dict(no_rope_layers=[1, 'x']), '2 numbers are needed, 0 or 1'),
        ('phi3', dict(lm_head_bias=True), 'lm_head_bias = True: only False'),
    ],
)
def test_what_is_not_supported_is_named(name, changes, message):
    with pytest.raises(UsageError, match='config.json') as error:
        model_of(name, **changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(short_factor=[1.0] * 5), '6 numbers are needed, one for each rotated pair'),
        (dict(short_factor=[1.0] * 5 + [0]), 'short_factor'),
        (dict(short_factor=[1.0] * 5 + ['x']), 'short_factor'),
        (dict(long_factor='removed'), 'long_factor'),
    ],
)
def test_factors_that_do_not_fit_are_refused(changes, message, tmp_path):
    given = hosts.find(folder_of('phi3')).attributes['rope_parameters'] | changes
    folder = copied('phi3', tmp_path, rope_parameters=given)
    with pytest.raises(UsageError, match=message):
        hosts.find(folder)


@pytest.mark.parametrize('memory', ['infini', 'memorizing'])
def test_layers_with_a_window_keep_it(memory):
    config = host_config.get_config(f'path={folder_of("gemma3_text")},memory={memory},segment=5')
    assert config.model.attention == ('sliding', memory, 'sliding')
    config = host_config.get_config(
        f'path={folder_of("gemma3_text")},memory={memory},segment=5,layers=2'
    )
    assert config.model.attention[2] == memory


@pytest.mark.parametrize(
    'name, layer, length',
    [
        ('gemma3_text', 1, LENGTH),
        ('gemma3_text', 0, 5),
        ('smollm3', 1, LENGTH),
        ('phi3', 0, LENGTH),
    ],
)
def test_an_empty_memory_in_a_layer_leaves_the_host(name, layer, length):
    """The memory takes the base, or the lack of rotation, of the layer where it stands."""
    with np.load(GOLDENS / name / 'caseA.npz') as file:
        tokens, wanted = file['in/tokens'][:, :length], file['out/logits'][:, :length]
    config = host_config.get_config(
        f'path={folder_of(name)},memory=infini,layers={layer},segment={length}'
    )
    params = hosts.load(
        hosts.find(folder_of(name)), hosts.make(config.model, length), report=lambda line: None
    )
    # Gates that are shut as far as float32 goes.
    gates = params[f'block_{layer}']['attention']['gate']
    params[f'block_{layer}']['attention']['gate'] = jnp.full_like(gates, -30.0)
    found = read(config.model, params, tokens, length)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
