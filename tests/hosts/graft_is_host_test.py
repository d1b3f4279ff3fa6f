"""A memory that claims it begins as the host does: with an empty memory, the model is the host."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.errors import UsageError
from longmem_jax.hosts import grafting, hosts
from longmem_jax.segment import Segment, read_segments
from tests.hosts.hosts_test import folder_of

LENGTH = 4
CLAIMS = sorted(name for name, graft in grafting.grafts().items() if graft.exact)
# Positions in embeddings; rotary ones and fewer heads of keys. Two others, with windows and with
# parallel layers, have one memory each.
HOSTS = ('gpt2', 'llama')
OTHERS = ('gpt_neo', 'gpt_neox')
PAIRS = [
    *((host, name) for host in HOSTS for name in CLAIMS),
    *((host, 'infini') for host in OTHERS),
]
QUICK = {('gpt2', 'infini'), ('llama', 'memorizing')}


def tokens_of(host):
    size = host.plain.vocab_size
    return jnp.asarray(np.random.default_rng(0).integers(0, size, (2, 2, LENGTH)), jnp.int32)


@functools.partial(jax.jit, static_argnums=0)
def read_all(module, params, tokens):
    """Logits [segments, batch, LENGTH, vocab] of a document."""

    def read(state, segment, key):
        logits, state, _ = module.apply({'params': params}, segment, state, train=False)
        return state, logits

    start = jnp.zeros(tokens.shape[:2], bool).at[0].set(True)
    segments = Segment(tokens, jnp.ones(tokens.shape, bool), start)
    state = module.apply({'params': params}, 2, method='initial_state')
    return read_segments(read, state, segments, jax.random.key(0))[1]


def logits(module, params, tokens):
    return np.asarray(read_all(module, params, tokens))


@functools.cache
def of_host(name):
    """The host, and its logits."""
    host = hosts.find(folder_of(name))
    module = hosts.make(host.plain, LENGTH)
    params = hosts.load(host, module, report=lambda line: None)
    return host, logits(module, params, tokens_of(host))


def grafted(name, memory, **options):
    """The configuration of a host with a memory."""
    config = base()
    config.train.segment_length = LENGTH
    grafting.use_host(config, str(folder_of(name)))
    grafting.graft(config, memory, **options)
    config.data.tokenizer = dict(kind='bytes', path='', size=0)
    assert checks.find_problems(config, 1) == []
    return config


def forgets(host, memory):
    """Whether nothing of an earlier segment is seen: no window without rotary positions."""
    return memory == 'local' or (memory == 'normalized_xl' and host.plain.position != 'none')


def loaded(host, config):
    """Its module, its parameters, and what was said."""
    module, said = hosts.make(config.model, LENGTH), []
    return module, hosts.load(host, module, report=said.append), said[0]


@pytest.mark.parametrize(
    'name, memory',
    [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS],
)
def test_graft_is_host(name, memory):
    host, wanted = of_host(name)
    module, params, said = loaded(host, grafted(name, memory))
    found = logits(module, params, tokens_of(host))
    size = np.abs(wanted).max()
    np.testing.assert_allclose(
        found[0],
        wanted[0],
        atol=3e-6 * max(size, 1.0),
        err_msg=f'{memory}: with an empty memory this is not the host. Make it so in `Entry.graft` of '
        'its file, or say exact=False there.',
    )
    assert 'ignored: nothing' in said, said
    if not forgets(host, memory):
        changed = jnp.roll(tokens_of(host), 1, axis=2).at[1].set(tokens_of(host)[1])
        # A new map that begins with zeros leaves the memory unwritten until it is trained.
        random = np.random.default_rng(0)
        trained = jax.tree.map(
            lambda leaf: leaf if leaf.any() else random.normal(size=leaf.shape).astype(leaf.dtype),
            params,
        )
        first, second = (logits(module, trained, part)[1] for part in (tokens_of(host), changed))
        assert np.abs(second - first).max() > 1e-6, 'no memory'


@pytest.mark.parametrize(
    'name, memory',
    [('gpt2', 'memsizer'), pytest.param('llama', 'linear', marks=pytest.mark.slow)],
)
def test_any_attention_may_stand_beside_that_of_the_host(name, memory):
    """Exactly the host, whatever the memory is; with an open gate it is read."""
    host, wanted = of_host(name)
    config = grafted(name, memory, beside=True, layers=(1,))
    assert config.model.beside == ('', memory) and memory not in config.model.attention
    module, params, said = loaded(host, config)
    found = logits(module, params, tokens_of(host))
    np.testing.assert_allclose(found[0], wanted[0], atol=3e-6 * max(np.abs(wanted).max(), 1.0))
    assert 'ignored: nothing' in said, said
    gate = params['block_1']['beside_gate']
    assert not gate.any() and 'beside_gate' not in params['block_0']
    opened = params | {'block_1': params['block_1'] | {'beside_gate': jnp.ones_like(gate)}}
    changed = jnp.roll(tokens_of(host), 1, axis=2).at[1].set(tokens_of(host)[1])
    first, second = (logits(module, opened, part)[1] for part in (tokens_of(host), changed))
    assert np.abs(first - second).max() > 1e-6, 'no memory'


def test_what_cannot_stand_beside_is_said():
    with pytest.raises(UsageError, match='beside: is for attention layers'):
        grafted('llama', 'product_key', beside=True)


def test_every_memory_that_is_a_layer_says_how_it_takes_a_place():
    known = grafting.grafts()
    assert {'infini', 'infinity_former', 'compressive', 'memorizing', 't2r', 'product_key'} <= {
        *known
    }
    assert not {'memory_tokens', 'compressive_sliding'} & {*known}
    assert {'memformer', 'recurrent'} <= {*known}
    for graft in known.values():
        assert graft.how[-1] != '.' and graft.positions[-1] != '.'


def test_the_table_in_the_documentation():
    page = Path(__file__).parents[2] / 'docs' / 'memories_in_hosts.md'
    assert grafting.table() in page.read_text(), (
        'write the table again: python -c "from longmem_jax.hosts import grafting; '
        'print(grafting.table())"'
    )
