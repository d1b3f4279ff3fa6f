"""Hosts with layers besides attention, and with experts: files, attributes, segments, memories."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import host as host_config
from longmem_jax.errors import UsageError
from longmem_jax.hosts import export, hosts, model_fields
from longmem_jax.segment import Segment
from longmem_jax.training.optimizer import parameter_groups, parameter_path
from tests import toys
from tests.hosts.export_test import assert_same, tensors_of
from tests.hosts.hosts_test import GOLDENS, copied, folder_of, load, model_of
from tests.parity_systems.hosts import EXPERTS, HYBRIDS, LATER

LENGTH = 12


def golden(name):
    with np.load(GOLDENS / name / 'caseA.npz') as file:
        return file['in/tokens'], file['out/logits']


@pytest.mark.parametrize('name', HYBRIDS)
def test_two_segments_are_the_whole_text_of_transformers(name):
    """The state of both kinds of layers is handed on; the other goldens are in the slow tier."""
    tokens, wanted = golden(name)
    host, params, said = load(folder_of(name))
    assert 'new: nothing; ignored: nothing' in said
    module = hosts.make(host.model, LENGTH)
    read = jax.jit(lambda *given: module.apply({'params': params}, *given, train=False)[:2])
    state = module.apply({'params': params}, 2, method='initial_state')
    found = []
    for number in range(2):
        part = jnp.asarray(tokens[:, number * LENGTH : (number + 1) * LENGTH], jnp.int32)
        start = jnp.full((2,), number == 0)
        logits, state = read(Segment(part, jnp.ones(part.shape, bool), start), state)
        found.append(logits)
    np.testing.assert_allclose(
        np.concatenate(found, axis=1), wanted, atol=1e-4 * np.abs(wanted).max()
    )


@pytest.mark.parametrize('name', (*HYBRIDS, EXPERTS, *LATER))
def test_an_unchanged_host_is_the_same_bytes(name, tmp_path):
    host, params, _ = load(folder_of(name))
    export.save(tmp_path / 'out', host.model, params, like=host)
    assert_same(tensors_of(tmp_path / 'out'), tensors_of(folder_of(name)))
    ours, theirs = (path / 'config.json' for path in (tmp_path / 'out', folder_of(name)))
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize('name', (*HYBRIDS, EXPERTS))
def test_a_model_trained_here_becomes_a_host(name, tmp_path):
    model = hosts.find(folder_of(name)).model
    params = toys.parameters(hosts.make(model, 4), 3)
    export.save(tmp_path / 'out', model, params)
    host, again, said = load(tmp_path / 'out')
    assert 'longmem' not in host.attributes and 'new: nothing' in said
    assert not model_fields.differences(host.model, model)
    jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.parametrize('name', (*HYBRIDS, EXPERTS, *LATER))
def test_config_json_goes_to_config_model_and_back(name):
    model = model_of(name)
    written = model_fields.attributes_of(model)
    assert written['model_type'] == name
    assert not model_fields.differences(model_fields.model_of(written, 'written'), model)


def test_layers_by_name_or_every_fourth():
    layers = dict(num_hidden_layers=8, layer_types='removed', mlp_only_layers=[])
    model = model_of('qwen3_next', **layers, decoder_sparse_step=2)
    own, full = model.attention[0], 'full'
    assert model.attention == ((own,) * 3 + (full,)) * 2 and own != full
    assert model.feed_forward == ('dense', 'experts') * 4
    every = model_of('qwen3_next', **layers, full_attention_interval=2)
    assert every.attention == (own, full) * 4
    assert set(model_of('qwen3_next', num_experts=0).feed_forward) == {'dense'}


def test_rotation_only_where_the_file_has_a_base():
    given = dict(rope_type='default', rope_theta=500.0)
    assert model_of('olmo_hybrid').full.position == 'none'
    rotated = model_of('olmo_hybrid', rope_parameters=given)
    assert (rotated.full.position, rotated.rotary_base) == ('rotary', 500.0)
    assert model_of('olmo_hybrid', rope_parameters='removed').rotary_base == 10000.0
    missing = dict(rope_parameters='removed', rope_theta=None)
    assert model_of('olmo_hybrid', **missing).full.position == 'none'


@pytest.mark.parametrize(
    'name, changes, message',
    [
        (
            'qwen3_next',
            dict(linear_num_value_heads=5),
            'must be a multiple of linear_num_key_heads',
        ),
        ('qwen3_next', dict(linear_key_head_dim=0), 'linear_key_head_dim = 0: must be above 0'),
        ('olmo_hybrid', dict(linear_conv_kernel_dim=1), 'must be at least 2'),
        ('olmo_hybrid', dict(linear_allow_neg_eigval=2), 'a value of type bool'),
        ('olmo_hybrid', dict(linear_gate_low_rank=3), 'sets linear_gate_low_rank: not supported'),
        ('qwen3_next', dict(layer_types=['linear_attention'] * 2), 'at least one full_attention'),
        ('qwen3_next', dict(layer_types=['mamba', 'full_attention']), '2 layers of the kinds'),
        ('qwen3_next', dict(attention_bias=True), 'attention_bias = True: only False'),
        ('qwen3_next', dict(hidden_act='gelu_new'), "only 'silu'"),
        ('qwen3_next', dict(num_experts_per_tok=7), 'must be from 1 to 6'),
        ('qwen3_next', dict(num_experts=1 << 40), 'num_experts = '),
        ('qwen3_next', dict(mlp_only_layers=['a']), 'numbers of layers are needed'),
        ('qwen3_moe', dict(num_experts=4), 'num_experts = 4: only 5 is supported'),
        ('qwen3_moe', dict(use_sliding_window=True), 'use_sliding_window = True: only False'),
        ('llama', dict(num_experts=4), 'sets num_experts: not supported'),
    ],
)
def test_attributes_are_refused_by_name(name, changes, message):
    with pytest.raises(UsageError) as error:
        model_of(name, **changes)
    assert message in str(error.value), error.value


@pytest.mark.parametrize(
    'name, change, message',
    [
        ('qwen3_next', {'model.layers.1.mlp.experts.3.up_proj.weight': None}, 'by config.json'),
        ('qwen3_next', {'model.layers.1.mlp.experts.3.up_proj.weight': (12, 9)}, 'differ in shape'),
        (
            'qwen3_next',
            {'model.layers.0.linear_attn.in_proj_ba.weight': (11, 32)},
            'by config.json',
        ),
        ('olmo_hybrid', {'model.layers.0.linear_attn.q_conv1d.weight': ()}, 'differ in shape'),
        (
            'olmo_hybrid',
            {'model.layers.0.linear_attn.A_log': None},
            'missing are layers.0.linear_attn.A',
        ),
        ('olmo_hybrid', {'model.layers.1.linear_attn.A_log': (4,)}, 'not of this model are'),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name, change, message, tmp_path):
    def changed(tensors):
        for key, shape in change.items():
            tensors.pop(key, None)
            tensors |= {} if shape is None else {key: np.zeros(shape, np.float32)}
        return tensors

    with pytest.raises(UsageError) as error:
        load(copied(name, tmp_path, changed))
    assert message in str(error.value), error.value


def test_a_convolution_may_be_cut_anywhere(tmp_path):
    """Files of the authors have a tensor for queries, keys and values each; some programs cut evenly."""
    names = [f'model.layers.0.linear_attn.{part}_conv1d.weight' for part in 'qkv']
    _, wanted, _ = load(folder_of('olmo_hybrid'))

    def by_part(tensors):
        joined = np.concatenate([tensors.pop(name) for name in names])
        return tensors | dict(zip(names, np.split(joined, [12, 24]), strict=True))

    def as_one(tensors):
        joined = np.concatenate([tensors.pop(name) for name in names])
        return tensors | {'model.layers.0.linear_attn.conv1d.weight': joined}

    for number, change in enumerate((by_part, as_one)):
        folder = copied('olmo_hybrid', tmp_path / str(number), change)
        host, params, _ = load(folder)
        jax.tree.map(np.testing.assert_array_equal, params, wanted)
        export.save(tmp_path / f'out{number}', host.model, params, like=host)
        assert_same(tensors_of(tmp_path / f'out{number}'), tensors_of(folder))


def config_of(name, argument):
    return host_config.get_config(f'tiny,path={folder_of(name)},segment={LENGTH},{argument}')


@pytest.mark.parametrize(
    'name, memory, message',
    [
        ('qwen3_next', 'infini', 'an output gate, which a memory in its place has not'),
        ('qwen3_next', 'infini,layers=0', 'layer 0 of the host is delta by itself'),
        ('olmo_hybrid', 'armt', 'stands around the blocks'),
        ('olmo_hybrid', 'gated_delta_net', 'the host has delta layers by itself'),
        ('olmo_hybrid', 'none,frozen', 'nothing is left to learn'),
    ],
)
def test_memories_that_do_not_fit_are_refused(name, memory, message):
    with pytest.raises(UsageError, match=message):
        config_of(name, f'memory={memory}')


@pytest.mark.slow
@pytest.mark.parametrize(
    'name, memory', [('qwen3_next', 'infini,beside'), ('olmo_hybrid', 'infini')]
)
def test_a_memory_in_a_hybrid_begins_as_the_host(name, memory):
    """Beside all layers, or in place of attention alone; frozen is all that the host has."""
    config = config_of(name, f'memory={memory},frozen')
    host, tokens = hosts.find(folder_of(name)), jnp.asarray(golden(name)[0][:, :LENGTH], jnp.int32)
    module = hosts.make(config.model, LENGTH)
    params = hosts.load(host, module, report=lambda line: None)
    state = module.apply({'params': params}, 2, method='initial_state')
    segment = Segment(tokens, jnp.ones(tokens.shape, bool), jnp.ones((2,), bool))
    found = jax.jit(lambda *given: module.apply({'params': params}, *given, train=False)[0])(
        segment, state
    )
    wanted = golden(name)[1][:, :LENGTH]
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
    groups = parameter_groups(config.optimizer.groups, hosts.shapes(module))
    own = {*hosts.shapes(hosts.make(host.plain, LENGTH))}
    for path, group in jax.tree.leaves_with_path(groups):
        rate = config.optimizer.groups[group][1] if group >= 0 else 1.0
        assert (rate == 0.0) == (parameter_path(path) in own), path
