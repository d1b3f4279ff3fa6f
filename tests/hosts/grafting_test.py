"""Memories in some layers of a host, with other positions, rates and problems."""

import jax
import numpy as np
import pytest

from configs import host as host_config
from longmem_jax.config import checks
from longmem_jax.config.recipes import given
from longmem_jax.errors import UsageError
from longmem_jax.hosts import export, grafting, hosts
from longmem_jax.layers import low_rank
from longmem_jax.models.stack import context_of, longest_of
from longmem_jax.training.optimizer import parameter_groups, parameter_path
from tests.hosts.graft_is_host_test import LENGTH, grafted, loaded, logits, of_host, tokens_of
from tests.hosts.hosts_test import folder_of
from tests.parity_systems.hosts import DECODERS


def get_config(argument, name='gpt2'):
    config = host_config.get_config(f'tiny,path={folder_of(name)},segment={LENGTH},{argument}')
    config.data.tokenizer = dict(kind='bytes', path='', size=0)
    assert checks.find_problems(config, 1) == []
    return config


@pytest.mark.parametrize('name', ['gpt2', pytest.param('llama', marks=pytest.mark.slow)])
def test_chosen_layers(name):
    host, wanted = of_host(name)
    config = get_config('memory=infini,layers=last', name)
    others = 'local' if name == 'gpt2' else 'sinks'
    assert config.model.attention == (others, 'infini')
    assert 'full' not in config.model  # not the host's whole context in every segment
    module, params, said = loaded(host, config)
    assert 'new: block_1/attention/gate; ignored: nothing' in said
    found = logits(module, params, tokens_of(host))
    np.testing.assert_allclose(found[0], wanted[0], atol=2e-5)


def test_the_window_has_room_for_tokens_of_the_memory():
    """The last token of a segment sees those that were put before it."""
    config = get_config('memory=recurrent', 'llama')
    assert config.model.full.window == longest_of(config.model, LENGTH) > LENGTH


def test_distances_of_blocks_are_within_the_context_of_a_host():
    """And the first segment sees all of itself, at its distances."""
    model = get_config('memory=moba', 'llama').model
    blocks, context = model.chunk_retrieval, context_of(of_host('llama')[0].model)
    assert LENGTH <= blocks.clamp_length < context
    assert blocks.block_length * blocks.top_k >= LENGTH
    assert blocks.sinks and blocks.near and blocks.gate == 'largest'


@pytest.mark.parametrize('memory', ['sinks', 'hippocampus'])
def test_the_window_itself_is_for_all_layers(memory):
    with pytest.raises(UsageError, match="leave out layers=.*have 'sinks'"):
        get_config(f'memory={memory},layers=last', 'llama')


def test_layers_without_the_memory_keep_the_first_tokens():
    """A pretrained decoder breaks when a window drops them."""
    host, _ = of_host('llama')
    module, params, _ = loaded(host, get_config('memory=local,layers=last', 'llama'))
    tokens = np.random.default_rng(0).integers(0, 9, (5, 2, LENGTH)).astype(np.int32)
    changed = tokens.copy()
    changed[0, :, 0] += 1  # five segments ago; windows have room for two
    first, second = (logits(module, params, rows)[-1] for rows in (tokens, changed))
    assert np.abs(second - first).max() > 1e-6


@pytest.mark.parametrize('name', ['llama', pytest.param('qwen3', marks=pytest.mark.slow)])
@pytest.mark.parametrize('memory', ['memorizing', 'normalized_xl'])
def test_with_shut_gates_a_memory_is_the_host_with_its_first_tokens(memory, name):
    """In seven segments, of which windows hold two at most."""
    host, _ = of_host(name)
    tokens = np.random.default_rng(0).integers(0, 9, (7, 2, LENGTH)).astype(np.int32)
    config = get_config(f'memory={memory},layers=last', name)
    module, params, _ = loaded(host, config)
    plain = get_config('memory=sinks', name)
    plain.model.sinks = config.model.sinks  # of the layer without the memory
    wanted = logits(*loaded(host, plain)[:2], tokens)

    def shut(path, leaf):
        return np.full_like(leaf, -1e9) if parameter_path(path).endswith('gate') else leaf

    params = jax.tree.map_with_path(shut, params)
    np.testing.assert_allclose(logits(module, params, tokens), wanted, atol=1e-5)


@pytest.mark.parametrize(
    'memory',
    [
        'infini',  # a gate
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ('transformer_xl', 'compressive', 'memorizing')  # of the first, a bias
        ),
    ],
)
def test_what_is_stored_is_nearly_shut_at_first_and_opens_soon(memory):
    """A decoder with positions in its embeddings takes a stored vector for one of this segment."""
    host, _ = of_host('gpt2')
    alone = loaded(host, grafted('gpt2', 'local'))
    config = grafted('gpt2', memory)
    module, params, _ = loaded(host, config)
    wanted = logits(*alone[:2], tokens_of(host))[1]
    doors = ('memory_bias', 'gate')

    def with_doors(value):
        return jax.tree.map_with_path(
            lambda path, leaf: (
                np.full_like(leaf, value) if parameter_path(path).endswith(doors) else leaf
            ),
            params,
        )

    def change(params):
        return np.abs(logits(module, params, tokens_of(host))[1] - wanted).mean()

    assert change(with_doors(-1e9)) < 1e-6
    assert change(params) < 0.2 * change(with_doors(0.0))
    ((pattern, rate, _),) = config.optimizer.groups
    assert pattern.rstrip('$').endswith(doors) and rate >= 5.0


def test_rotary_positions_replace_those_in_the_embeddings():
    """As for GPT-Neo in the thesis on Infini-attention."""
    host, wanted = of_host('gpt_neo')
    config = get_config('memory=infini,position=rotary', 'gpt_neo')
    assert config.model.position == 'none' and config.model.infini.position == 'rotary'
    assert 'not yet the host, whose positions were replaced' in config.notes[0]
    module, params, said = loaded(host, config)
    assert 'ignored: transformer.wpe.weight' in said
    assert np.abs(logits(module, params, tokens_of(host))[0] - wanted[0]).max() > 1e-3


@pytest.mark.slow
def test_a_host_becomes_linear_attention():
    host, _ = of_host('gpt2')
    config = get_config('memory=t2r')
    module, params, said = loaded(host, config)
    assert 'ignored: nothing' in said and 'feature_map/matrices' in said
    assert np.isfinite(logits(module, params, tokens_of(host))).all()


def test_a_feed_forward_memory_leaves_attention_as_it_is():
    config = get_config('memory=product_key,layers=1')
    assert config.model.attention == ('full', 'full') and not config.model.positions_restart
    assert config.model.feed_forward == ('dense', 'product_key')


@pytest.mark.parametrize('name', DECODERS)
def test_rates_tell_the_host_from_what_is_new(name):
    config = get_config('memory=infinity_former,lora=2,host_rate=0.1', name)
    module = hosts.make(config.model, LENGTH)
    shapes = hosts.shapes(module)
    own = {*hosts.shapes(hosts.make(hosts.find(folder_of(name)).plain, LENGTH))}
    groups = config.optimizer.groups
    assigned = parameter_groups(groups, shapes)
    for path, group in jax.tree.leaves_with_path(assigned):
        path = parameter_path(path)
        rate = groups[group][1] if group >= 0 else 1.0
        assert (rate == 0.1) == (path in own), path
        assert rate >= 1.0 or path in own
    frozen = get_config('memory=infini,frozen').optimizer.groups
    assert [group[1:] for group in frozen if group[0] == grafting.HOST] == [(0.0, False)]


@pytest.mark.parametrize(
    'argument, message',
    [
        ('memory=none,frozen', 'frozen: nothing is left to learn'),
        ('memory=memory_tokens', 'cannot be put into a host'),
        ('memory=infinii', "did you mean 'infini'"),
        ('memory=infini,layers=5', 'the host has the layers 0 to 1'),
        ('memory=infini,layers=a', 'numbers from 0 are needed'),
        ('memory=infini,position=alibi', 'position'),
        ('memory=infini,host_rate=x', 'host_rate=x: must be a number'),
        ('memory=infini,host_rate=-1', 'host_rate=-1: must be a number of at least 0'),
        ('memory=infini,host_rate=0.5,frozen', 'leave one of the two out'),
        ('memory=infini,layers=', 'layers=: numbers of layers are needed'),
        ('memory=none,beside', 'memory=none: leave out'),
    ],
)
def test_problems(argument, message):
    with pytest.raises(UsageError, match=message):
        get_config(argument)


def test_a_segment_longer_than_a_window_of_the_host_is_refused():
    window = hosts.find(folder_of('gpt_neo')).plain.sliding.window
    for others in ('', ',layers=0'):
        with pytest.raises(UsageError, match=f'layer 1 of the host sees {window} tokens'):
            host_config.get_config(f'path={folder_of("gpt_neo")},segment={window + 4}{others}')
    with pytest.raises(UsageError, match='is not a decoder'):
        host_config.get_config(f'path={folder_of("bert")}')


@pytest.mark.slow
@pytest.mark.parametrize('name', ['gpt2', 'qwen3'])
def test_low_rank_parts_of_a_host_are_their_merged_kernels(name):
    """Qwen 3 has norms of queries and keys after its maps."""
    host, wanted = of_host(name)
    config = get_config('memory=none,lora=2,frozen', name)
    module, params, said = loaded(host, config)
    assert 'query/lora/a' in said
    tokens = tokens_of(host)
    np.testing.assert_allclose(logits(module, params, tokens), wanted, atol=2e-6)

    def change(path, leaf):
        moved = leaf + 0.1 * jax.random.normal(jax.random.key(2), leaf.shape)
        return moved if parameter_path(path).endswith('lora/b') else leaf

    params = jax.tree_util.tree_map_with_path(change, params)
    found = logits(module, params, tokens)
    config.model.lora.rank = 0
    plain = logits(hosts.make(config.model, LENGTH), low_rank.merged(params), tokens)
    np.testing.assert_allclose(found, plain, atol=2e-5)
    assert np.abs(found - wanted).max() > 1e-3


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(memory_length=4), 'holds no more than the first sinks = 4 tokens'),
        (dict(window=6), 'window = 6: hides the first sinks = 4 tokens'),
        (dict(sinks=-1), 'sinks = -1: must be at least 0'),
    ],
)
def test_a_window_without_room_for_first_tokens_is_refused(changes, message):
    config = get_config('memory=memorizing', 'llama')
    config.model.memorizing.update(changes)
    (problem,) = checks.find_problems(config, 1)
    assert message in problem


def test_numbers_of_layers():
    assert grafting.numbers('2', 4) == (2,)
    assert grafting.numbers('0-1+last', 4) == (0, 1, 3)


def test_fields_can_be_changed():
    config = grafted('gpt2', 'infini', changes=given(gate_std=1.0, groups=()))
    assert config.model.infini.gate_std == 1.0 and config.model.infini.skip_gate_when_empty
    assert config.optimizer.groups == ()


def exported(tmp_path, name, memory):
    """The folder of a host that was exported with a memory."""
    host, _ = of_host(name)
    config = grafted(name, memory)
    _, params, _ = loaded(host, config)
    export.save(tmp_path / 'out', config.model, params, like=host, segment_length=LENGTH)
    return f'tiny,path={tmp_path / "out"},segment={LENGTH}'


def test_a_host_that_was_exported_with_a_memory_keeps_it_or_is_refused(tmp_path):
    """Not replaced without a word; feed-forward layers of the host are still its own."""
    argument = exported(tmp_path, 'llama', 'infini')
    for itself in ('', ',memory=none'):
        kept = host_config.get_config(argument + itself).model
        assert kept.attention == ('infini',) * 2
    for memory in ('infini', 'compressive,layers=0', 'local,position=rotary'):
        with pytest.raises(
            UsageError, match='attention has infini already, .* leave out memory= to'
        ):
            host_config.get_config(f'{argument},memory={memory}')
    # It is read as it was trained: in its segments, after a begin token.
    folder = argument.removesuffix(f',segment={LENGTH}')
    config = host_config.get_config(folder)
    assert (config.train.segment_length, config.data.add_bos) == (LENGTH, 'always')
    with pytest.raises(UsageError, match='context=2: the host has a memory already'):
        host_config.get_config(f'{folder},context=2')
    for place in ('layers=0', 'beside'):
        with pytest.raises(UsageError, match='was exported with a memory.*; leave out layers='):
            host_config.get_config(f'{argument},{place}')
    both = host_config.get_config(f'{argument},memory=product_key').model
    assert (both.attention, both.feed_forward) == (('infini',) * 2, ('dense', 'product_key'))
    # What counts are names that are given, not what stands in the name of the folder.
    named = (tmp_path / 'out').rename(tmp_path / 'memory=local segment=9')
    config = host_config.get_config(f'tiny,path={named}')
    assert (config.model.attention, config.train.segment_length) == (('infini',) * 2, LENGTH)


@pytest.mark.parametrize(
    'memory, remat', [('infini', 'dots_with_no_batch_dims_saveable'), ('memformer', '')]
)
def test_scores_are_not_kept_for_derivatives(memory, remat):
    """Of 30 layers they would fill a GPU; what is read inside of blocks cannot be computed again."""
    config = host_config.get_config(f'memory={memory}')
    assert config.model.remat == remat and checks.find_problems(config, 1) == []
