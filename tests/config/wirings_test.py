"""How several kinds of layers are wired: hybrids of released models, and memories of Titans."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import slimpajama_340m
from longmem_jax.config import checks
from longmem_jax.config.files import configure
from longmem_jax.data import lanes
from longmem_jax.errors import UsageError
from longmem_jax.generation.reader import fresh_state
from longmem_jax.models.kinds import make_model
from longmem_jax.training.step import read_batch
from tests.config.sizes import num_parameters
from tests.toys import parameters

TITANS = Path(__file__).parents[2] / 'docs' / 'memories' / 'titans.md'


def two_steps(config, layers, rate=0.3):
    """Two steps of descent on the same random bytes: losses, and the parameters before and after.

    Of a model with the first layers only, which is compiled sooner.
    """
    assert checks.find_problems(config, 1) == []
    model, length = config.model, 16
    model.num_layers = layers
    for place in ('attention', 'feed_forward', 'beside'):
        model[place] = model[place][:layers]
    made = make_model(model, length)
    tokens = np.random.default_rng(0).integers(0, 256, (1, 2, length)).astype(np.int32)
    full = np.ones(tokens.shape, bool)
    batch = lanes.Batch(
        tokens=tokens, targets=tokens, valid=full, scored=full.astype(np.uint8),
        start=full[..., 0], num_bytes=np.full((1, 2), length, np.float32),
    )  # fmt: skip
    params = parameters(made)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        memory = fresh_state(made, params, 2)
        return read_batch(made, params, memory, batch, jax.random.key(0), config.train)[0]

    losses, before = [], params
    for _ in range(2):
        value, slopes = loss(params)
        losses.append(float(value))
        params = jax.tree.map(lambda p, g: p - rate * g, params, slopes)
    return [*losses, float(loss(params)[0])], before, params


@pytest.mark.parametrize(
    'hybrid, layers, parameters',
    [
        ('qwen3_next', ('delta', 'delta', 'delta', 'full'), 399_553_568),
        ('kimi_linear', ('delta', 'delta', 'delta', 'full'), 383_694_224),
        ('falcon_h1', ('full',), 531_701_312),
    ],
)
def test_a_hybrid_of_full_size_has_the_layers_of_its_model(hybrid, layers, parameters):
    config = slimpajama_340m.get_config(f'hybrid={hybrid}')
    model = config.model
    assert model.attention == layers * (24 // len(layers))
    assert model.full.window == config.train.segment_length
    assert model.beside == (('mamba2',) * 24 if hybrid == 'falcon_h1' else ())
    found = num_parameters(config)
    assert found == parameters, (
        f'{hybrid} has {found:,} parameters now: if this is meant, change the number here'
    )


def test_hybrids_differ_where_their_models_do():
    qwen, kimi, falcon = (
        slimpajama_340m.get_config(f'tiny,hybrid={name}').model
        for name in ('qwen3_next', 'kimi_linear', 'falcon_h1')
    )
    assert (qwen.delta.gate, kimi.delta.gate) == ('head', 'channel')
    assert (qwen.full.position, kimi.full.position) == ('rotary', 'none')
    assert (qwen.full.output_gate, kimi.full.output_gate) == (True, False)
    assert qwen.head_norm == 'rmsnorm' and not qwen.delta.head_norm, (
        'the norm is of attention alone'
    )
    assert (qwen.rotary_share, falcon.rotary_share) == (0.25, 1.0)
    assert falcon.beside == ('mamba2',) * 4 and not qwen.beside


@pytest.mark.parametrize(
    'argument, said',
    [
        ('hybrid=qwen', "did you mean 'qwen3_next'"),
        ('hybrid=falcon_h1,memory=gla', 'leave out mem'),
    ],
)
def test_a_hybrid_that_cannot_be_is_one_message(argument, said):
    with pytest.raises(UsageError, match=said):
        slimpajama_340m.get_config(argument)


def test_a_hybrid_trains():
    losses, before, after = two_steps(slimpajama_340m.get_config('tiny,hybrid=falcon_h1'), layers=1)
    assert losses[2] < losses[1] < losses[0], losses
    gates = [params['block_0']['beside_gate'] for params in (before, after)]
    assert not gates[0].any() and gates[1].any(), (
        'the gate begins at 0, and its slope is what the layer beside gives: is that added to y?'
    )


def wirings():
    """'layer' and 'gate' to the configuration of their command on the page of Titans."""
    commands = re.findall(r'longmem (--config=quickstart\S+.*?) --workdir', TITANS.read_text())
    found = {}
    for command in commands:
        name, *changes = command.replace('--config.', '').removeprefix('--config=').split()
        config = configure(name, dict(change.split('=', 1) for change in changes))
        found['gate' if config.model.beside else 'layer'] = config
    return found


@pytest.mark.parametrize(
    'wiring, attention, beside',
    [
        pytest.param('layer', ('titans', 'local'), (), id='layer'),
        pytest.param(
            'gate', ('local', 'local'), ('titans', 'titans'), marks=pytest.mark.slow, id='gate'
        ),
    ],
)
def test_titans_as_a_layer_and_as_a_gate(wiring, attention, beside):
    found = wirings()
    assert set(found) == {'layer', 'gate'}, (
        'docs/memories/titans.md has `longmem --config=quickstart... --workdir=DIR` for each wiring'
    )
    config = found[wiring]
    assert tuple(config.model.attention) == attention and tuple(config.model.beside) == beside
    losses, before, after = two_steps(config, layers=1 if beside else 2)
    assert losses[2] < losses[1] < losses[0], losses
    places = [
        'beside' if beside else 'attention',
        *(['attention'] if beside else []),
    ]
    for place in places:
        moved = jax.tree.map(
            lambda old, new: np.abs(new - old).max(),
            before['block_0'][place],
            after['block_0'][place],
        )
        assert any(jax.tree.leaves(moved)), f'nothing in {place} of the first block has learned'
