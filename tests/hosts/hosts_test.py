"""Folders of Hugging Face models: which attributes and tensors are read, and how."""

import json
import math
import shutil
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from safetensors.numpy import load_file, save_file

from longmem_jax.config.recipes import section
from longmem_jax.devices.sharding import make_mesh
from longmem_jax.errors import UsageError
from longmem_jax.hosts import hosts, model_fields
from longmem_jax.hosts.families import FAMILIES
from longmem_jax.hosts.tensor_files import TensorFiles
from tests.parity_systems.hosts import DECODERS, NAMES

GOLDENS = Path(__file__).parent.parent / 'goldens'


def folder_of(name):
    return GOLDENS / name / 'hf'


def copied(name, tmp_path, tensors=None, **attributes):
    """A writable copy with other attributes (None = removed), and with changed tensors."""
    folder = tmp_path / name
    shutil.copytree(folder_of(name), folder)
    given = json.loads((folder / 'config.json').read_text()) | attributes
    given = {key: value for key, value in given.items() if value is not None}
    (folder / 'config.json').write_text(json.dumps(given))
    if tensors is not None:
        path = folder / 'model.safetensors'
        save_file(tensors(load_file(path)), path)
    return folder


def attributes(name, **changes):
    given = json.loads((folder_of(name) / 'config.json').read_text()) | changes
    return {key: value for key, value in given.items() if value != 'removed'}


def model_of(name, **changes):
    return model_fields.model_of(attributes(name, **changes), 'config.json')


def load(folder, mesh=None, **others):
    host = hosts.find(folder)
    lines = []
    params = hosts.load(host, hosts.make(host.model, 4), mesh, report=lines.append, **others)
    return host, params, lines[0]


@pytest.mark.parametrize('shape', [(700, 300), (300, 700), (5,), (), (0, 4)])
def test_there_is_one_copy_of_a_large_parameter(tmp_path, shape):
    """From a file of half the bytes, some rows at a time, into what the device keeps."""
    given = np.random.default_rng(0).normal(size=shape).astype(np.float16)
    save_file({'a': given}, tmp_path / 'model.safetensors')
    files, index = TensorFiles(tmp_path), tuple(slice(0, size) for size in shape)
    part = files.read('a', index)
    assert not part.ndim or not part.size or not part.flags.owndata
    tracemalloc.start()
    filled = hosts._filled(lambda cuts: files.read('a', cuts), index, 1 << 14)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(filled, given.astype(np.float32))
    assert peak < 1.1 * filled.nbytes + (16 << 10)
    assert filled.ctypes.data % hosts.ALIGNED == 0 or not filled.size
    save_file({'a': np.asarray(given + 1)}, tmp_path / 'other')
    (tmp_path / 'other').replace(tmp_path / 'model.safetensors')
    np.testing.assert_array_equal(files.read('a', index), given)


def test_a_file_that_became_shorter(tmp_path):
    path = tmp_path / 'model.safetensors'
    save_file({'a': np.ones((4, 9), np.float32)}, path)
    files = TensorFiles(tmp_path)
    with path.open('r+b') as file:
        file.truncate(path.stat().st_size - 4)
    with pytest.raises(UsageError, match='model.safetensors: a cannot be read any more'):
        files.read('a', (slice(0, 4), slice(0, 9)))


@pytest.mark.parametrize('name', NAMES)
def test_every_byte_is_read_once(name):
    """On one device and on 8, sharded by heads and by width: the same numbers from the same bytes."""
    host, params, said = load(folder_of(name), make_mesh({}, jax.devices()[:1]))
    size = sum(math.prod(shape) for shape in host.files.shapes.values()) * 4
    assert host.files.bytes_read == size
    assert 'new: nothing; ignored: nothing' in said
    model = host.model
    divides = all(size % 2 == 0 for size in (model.num_heads, model.d_model, model.vocab_size))
    if not divides:  # of these, the vocabulary of 61: only its table is sharded over it
        mesh = make_mesh(dict(data=2, fsdp=4))
    spread, sharded, _ = load(folder_of(name), mesh)
    assert spread.files.bytes_read == size
    for ours, theirs in zip(jax.tree.leaves(sharded), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    kernel = sharded['block_0']['attention']['projections']['query']['kernel']
    assert kernel.sharding.spec[0] == ('fsdp',) or kernel.sharding.spec[0] == 'fsdp'


def test_heads_are_sharded_and_read_once(tmp_path):
    """Queries, keys and values lie in one tensor, head by head: parts of it are read, in pieces."""
    given = attributes('gpt_neox', vocab_size=64)

    def longer(tensors):
        for name in ('gpt_neox.embed_in.weight', 'embed_out.weight'):
            tensors[name] = np.concatenate([tensors[name], np.zeros((3, 32), np.float32)])
        return tensors

    folder = copied('gpt_neox', tmp_path, longer, **given)
    host, params, _ = load(folder, make_mesh(dict(fsdp=2, tensor=4)))
    assert host.files.bytes_read == sum(math.prod(s) for s in host.files.shapes.values()) * 4
    _, alone, _ = load(folder, make_mesh({}, jax.devices()[:1]))
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    kernel = params['block_0']['attention']['projections']['key']['kernel']
    assert kernel.addressable_shards[0].data.shape == (16, 1, 8)
    assert PartitionSpec(*kernel.sharding.spec) != PartitionSpec()


@pytest.mark.parametrize('name', NAMES)
def test_config_json_goes_to_config_model_and_back(name):
    model = model_of(name)
    written = model_fields.attributes_of(model)
    assert written['model_type'] == attributes(name)['model_type']
    assert not model_fields.differences(model_fields.model_of(written, 'written'), model)


@pytest.mark.parametrize(
    'name, old',
    [
        ('llama', dict(rope_theta=10000.0, rope_scaling=None, torch_dtype='bfloat16')),
        ('gpt_neox', dict(rotary_emb_base=10000, rotary_pct=0.25)),
        ('qwen2', dict(rope_theta=10000)),
    ],
)
def test_older_spellings(name, old):
    older = model_of(name, rope_parameters='removed', dtype='removed', **old)
    assert older == model_of(name)


def test_scaled_rotations_in_all_spellings():
    new = dict(rope_type='linear', factor=2.0, rope_theta=500.0)
    model = model_of('llama', rope_parameters=new)
    assert (
        model.rotary_scaling == 'linear' and model.rotary_factor == 2 and model.rotary_base == 500
    )
    for scaling in (dict(type='linear', factor=2.0), dict(rope_type='linear', factor=2)):
        old = dict(rope_parameters='removed', rope_scaling=scaling, rope_theta=500.0)
        assert model_of('llama', **old) == model
    yarn = dict(type='yarn', factor=4.0, original_max_position_embeddings=32)
    model = model_of('qwen2', rope_parameters='removed', rope_scaling=yarn)
    assert (model.rotary_original, model.rotary_bands) == (32, (1.0, 32.0))
    np.testing.assert_allclose(model.rotary_gain, 0.1 * math.log(4) + 1)
    llama3 = model_of('llama3_scaled')
    assert llama3.rotary_bands == (1.0, 4.0) and llama3.rotary_original == 16
    assert not model_fields.differences(
        model_fields.model_of(model_fields.attributes_of(model), ''), model
    )


@pytest.mark.parametrize(
    'parameters, message',
    [
        (dict(partial_rotary_factor=0.5), 'partial_rotary_factor = 0.5: only 1 is supported'),
        (dict(rope_theta=0.0), 'rope_theta = 0.0: must be above 0'),
        (dict(rope_theta=1), 'rope_theta = 1.0: must be above 1'),
        (dict(rope_type='linear', factor=0.0), 'factor = 0.0: must be above 0'),
        (
            dict(rope_type='yarn', factor=2.0, original_max_position_embeddings=0),
            'original_max_position_embeddings = 0: must be above 0',
        ),
        (
            dict(rope_type='llama3', factor=2.0, low_freq_factor=4.0, high_freq_factor=4.0),
            'high_freq_factor = 4.0: must be above low_freq_factor, which is 4.0',
        ),
    ],
)
def test_rotations_out_of_range(parameters, message):
    """Numbers that would give NaN, or what their models do not compute."""
    with pytest.raises(UsageError) as error:
        model_of('llama', rope_parameters=parameters)
    assert message in str(error.value), error.value
    older = {'rope_theta': parameters.get('rope_theta'), 'rope_scaling': parameters}
    with pytest.raises(UsageError) as error:
        model_of('llama', rope_parameters='removed', **older)
    assert message in str(error.value), error.value


def test_only_families_that_rotate_parts_of_heads_are_written_with_them():
    model = model_of('llama')
    model.rotary_share = 0.5
    assert model_fields.attributes_of(model)['model_type'] == 'phi3'
    model.attention_bias = 'all'
    with pytest.raises(UsageError, match='nearest is'):
        model_fields.attributes_of(model)
    assert model_of('gpt_neox', rope_parameters='removed', rotary_pct=0.5).rotary_share == 0.5
    with pytest.raises(UsageError, match='partial_rotary_factor = 1.5: must be at most 1'):
        model_of('gpt_neox', rope_parameters='removed', rotary_pct=1.5)


def test_windows_of_layers():
    assert model_of('gpt_neo').attention == ('full', 'sliding')
    types = dict(attention_layers='removed', attention_types=[[['local'], 1], [['global'], 1]])
    assert model_of('gpt_neo', **types).attention == ('sliding', 'full')
    mistral = model_of('mistral')
    assert mistral.attention == ('sliding',) * 2 and mistral.sliding.window == 6
    whole = model_of('mistral', sliding_window=None)
    assert whole.attention == ('full',) * 2 and whole.full.window == 64
    upper = dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)
    assert model_of('qwen2', layer_types='removed', **upper).attention == ('full', 'sliding')
    named = dict(upper, layer_types=['sliding_attention', 'full_attention'])
    assert model_of('qwen2', **named).attention == ('sliding', 'full')
    shorter = model_fields.model_of(attributes('llama'), 'config.json', context=16)
    assert shorter.full.window == 16


@pytest.mark.parametrize(
    'name, changes, message',
    [
        ('llama', dict(quantization_config={}), 'sets quantization_config: not supported'),
        (
            'gpt2',
            dict(scale_attn_by_inverse_layer_idx=True),
            'scale_attn_by_inverse_layer_idx = True',
        ),
        ('llama', dict(hidden_act='relu2'), "hidden_act = 'relu2': supported are silu"),
        (
            'llama',
            dict(rope_parameters=dict(rope_type='proportional')),
            "rope_type = 'proportional' is not",
        ),
        ('qwen2', dict(rope_scaling=dict(type='dynamic')), "rope_scaling.rope_type = 'dynamic'"),
        (
            'llama',
            dict(rope_parameters=dict(rope_type='linear', factor=2.0, mscale=1)),
            'mscale: not',
        ),
        ('gpt2', dict(n_layer='removed'), 'n_layer is missing'),
        ('gpt2', dict(n_layer='2'), "n_layer = '2': a value of type int is needed"),
        ('gpt2', dict(n_embd=-4), 'n_embd = -4: must be above 0'),
        ('gpt2', dict(n_head=3), 'the width 32 is not a multiple of the 3 heads'),
        ('llama', dict(num_key_value_heads=3), 'must divide the 4 heads'),
        ('gpt2', dict(model_type='gpt3'), "did you mean 'gpt2'"),
        ('gpt2', dict(model_type='removed'), 'model_type = None'),
        ('bert', dict(position_embedding_type='relative_key'), 'position_embedding_type'),
        ('gpt_neo', dict(attention_layers=['global']), '2 layers of the kinds'),
        ('qwen3', dict(layer_types=['full_attention', 'linear_attention']), 'layer_types'),
        ('gpt2', dict(add_cross_attention=True), 'add_cross_attention = True: only False'),
    ],
)
def test_attributes_are_refused_by_name(name, changes, message):
    with pytest.raises(UsageError) as error:
        model_of(name, **changes)
    assert message in str(error.value), error.value


@pytest.mark.parametrize('name', DECODERS)
def test_tied_and_untied_outputs(name, tmp_path):
    """The output's own vectors are read where there are any; a copy of a tied table must be equal."""
    family = FAMILIES[attributes(name)['model_type']]
    tied = model_of(name).tie_weights
    host, params, _ = load(folder_of(name))
    assert ('out_table_0' in params['embedding']) != tied
    if not tied or name == 'qwen2':
        return
    head, table = family.heads[0], next(row.theirs for row in family.rows)

    def with_head(tensors):
        return tensors | {head: tensors[family.prefix + table].copy()}

    load(copied(name, tmp_path, with_head))

    def with_other(tensors):
        return tensors | {head: tensors[family.prefix + table] + 1}

    with pytest.raises(UsageError, match=f'{head} differs from .* tie_word_embeddings'):
        load(copied(name, tmp_path / 'other', with_other))
    _, own, _ = load(copied(name, tmp_path / 'own', with_other, tie_word_embeddings=False))
    np.testing.assert_allclose(own['embedding']['out_table_0'], own['embedding']['table_0'] + 1)


def test_files_without_the_prefix_and_with_buffers(tmp_path):
    """As GPT-2 lies on the hub."""

    def bare(tensors):
        tensors = {name.removeprefix('transformer.'): value for name, value in tensors.items()}
        return tensors | {'h.0.attn.bias': np.ones((1, 1, 32, 32), np.float32)}

    _, params, said = load(copied('gpt2', tmp_path, bare))
    assert 'ignored: h.0.attn.bias.' in said
    _, wanted, _ = load(folder_of('gpt2'))
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_decoder_without_the_prefix_and_with_buffers(tmp_path):
    """As the body of a model is saved by itself."""

    def bare(tensors):
        tensors = {name.removeprefix('model.'): value for name, value in tensors.items()}
        del tensors['lm_head.weight']
        return tensors | {'layers.0.self_attn.rotary_emb.inv_freq': np.ones(4, np.float32)}

    _, _, said = load(copied('llama', tmp_path, bare, tie_word_embeddings=True))
    assert 'ignored: layers.0.self_attn.rotary_emb.inv_freq.' in said


def test_names_of_older_bert_files(tmp_path):
    def old(tensors):
        for new, other in (
            ('LayerNorm.weight', 'LayerNorm.gamma'),
            ('LayerNorm.bias', 'LayerNorm.beta'),
        ):
            tensors = {
                'bert.' + n.replace(new, other).removeprefix('bert.'): v for n, v in tensors.items()
            }
        tensors = {n: v for n, v in tensors.items() if 'pooler' not in n}
        return tensors | {'cls.predictions.bias': np.zeros(61, np.float32)}

    host, params, said = load(copied('bert', tmp_path, old))
    assert 'pooler' not in params and not host.model.text_encoder.pooler
    assert 'ignored: cls.predictions.bias.' in said


def test_half_precision(tmp_path):
    def half(tensors):
        return {name: value.astype(jax.numpy.bfloat16) for name, value in tensors.items()}

    host, params, _ = load(copied('llama', tmp_path, half))
    assert set(host.files.dtypes.values()) == {'BF16'}
    assert params['final_norm']['scale'].dtype == np.float32


def test_a_memory_takes_the_place_of_attention():
    """The host's projections are loaded under another memory; what only the memory has is new."""
    host = hosts.find(folder_of('gpt2'))
    model = host.model.copy_and_resolve_references()
    model.attention, model.infini = ('full', 'infini'), section('infini')
    lines = []
    module = hosts.make(model, 8)
    params = hosts.load(host, module, report=lines.append)
    assert 'new: block_1/attention/' in lines[0] and 'block_0' not in lines[0]
    _, plain, _ = load(folder_of('gpt2'))
    np.testing.assert_array_equal(
        params['block_1']['attention']['projections']['key']['kernel'],
        plain['block_1']['attention']['projections']['key']['kernel'],
    )
    model.position, model.num_positions = 'none', 0
    hosts.load(host, hosts.make(model, 8), report=lines.append)
    assert 'ignored: transformer.wpe.weight.' in lines[1]


@pytest.mark.parametrize('number', [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite(number, tmp_path):
    def damaged(tensors):
        tensors['transformer.wte.weight'][3, 1] = number
        return tensors

    folder = copied('gpt2', tmp_path, damaged)
    with pytest.raises(UsageError, match='transformer.wte.weight has numbers that are not finite'):
        load(folder)
