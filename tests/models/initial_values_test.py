"""Untrained models: positions do not drown tokens, and the loss is that of guessing."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.models.kinds import KINDS, make_model
from longmem_jax.models.stack import init_std, make_embedding, token_std
from longmem_jax.segment import Segment
from tests.config.papers_test import get_config
from tests.toys import parameters

NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / 'configs').glob('[a-z]*.py'))
TINY = [f'{name}:tiny' for name in NAMES]
MEMORIES = ('linear', 'rfa', 't2r', 'memsizer', 'memformer', 'product_key')
LENGTH = 32
WITH_POSITIONS = [
    argument
    for argument in (*TINY, *(f'comparison:tiny,memory={memory}' for memory in MEMORIES))
    if get_config(argument).model.position != 'none'
]


@pytest.mark.parametrize(
    'argument',
    [
        pytest.param(argument, marks=pytest.mark.slow if number % 4 else ())
        for number, argument in enumerate(WITH_POSITIONS)
    ],
)
def test_positions_are_about_as_long_as_tokens(argument):
    model = get_config(argument).model
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, model.vocab_size, (1, LENGTH)))
    parts = []
    for position in (model.position, 'none'):
        with model.unlocked():
            model.position = position
        embedding = make_embedding(model, LENGTH)
        first = jnp.zeros((1,), jnp.int32)
        parts.append(
            embedding.init_with_output(jax.random.key(0), tokens, first, method='encode')[0]
        )
    both, token = (np.asarray(part) for part in parts)
    token_rms, position_rms = (float((part**2).mean() ** 0.5) for part in (token, both - token))
    assert token_rms == pytest.approx(token_std(model), rel=0.1)
    assert 1 / 1.5 < token_rms / position_rms < 1.5


def guess(model, targets):
    """The loss of equal logits: those of the head, and those of the target's cluster."""
    if not model.cutoffs:
        return math.log(model.vocab_size)
    edges = (0, *model.cutoffs, model.vocab_size)
    losses = math.log(model.cutoffs[0] + len(model.cutoffs)) * np.ones(targets.shape)
    for low, high in zip(edges[1:], edges[2:], strict=False):
        losses[(low <= targets) & (targets < high)] += math.log(high - low)
    return losses.mean()


FAST = ('quickstart:tiny', 'wikitext103:tiny', 'pkm_lm:tiny')


def representatives():
    """A config for every combination of what the first loss depends on, sizes apart."""
    found = {}
    for name in (*FAST, *TINY):
        config = get_config(name)
        model, acts = config.model, config.model.kind == 'agent'  # reads no tokens
        layers = (tuple(sorted({*model.attention})), tuple(sorted({*model.feed_forward})))
        start = (model.init, model.embedding_std, model.scale_embedding, model.tie_weights)
        rest = (model.kind, model.position, bool(model.cutoffs), model.pre_norm, model.token_shift)
        if not KINDS[model.kind].by_example and not acts:
            found.setdefault((*layers, *start, *rest), name)
    return sorted(found.values())


ALL = representatives()


@pytest.mark.parametrize(
    'argument',
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in ALL],
)
def test_the_first_loss_is_that_of_guessing(argument):
    config = get_config(argument)
    model = make_model(config.model, LENGTH)
    tokens = np.random.default_rng(0).integers(0, config.model.vocab_size, (2, LENGTH + 1))
    tokens = jnp.asarray(tokens, jnp.int32)
    segment = Segment(tokens[:, :-1], jnp.ones((2, LENGTH), bool), jnp.ones((2,), bool))

    @jax.jit
    def first_loss(params):
        params = {'params': params}
        state = model.apply(params, 2, method='initial_state')
        scores, _, _ = model.apply(params, segment, tokens[:, 1:], state, train=False, method='nll')
        return scores.nll.mean()

    wanted = guess(config.model, np.asarray(tokens[:, 1:]))
    # Vectors of length one give logits around 1, and the token itself a higher one: some tenths; more
    # where the projections of the clusters are tied, too.
    above = 1.8 if any(config.model.tie_projections) else 1.3
    assert wanted - 0.3 < first_loss(parameters(model)) < wanted + above


def test_the_width_of_the_model_sets_the_deviation_unless_the_config_does():
    model = get_config('quickstart').model
    assert init_std(model) == model.d_model**-0.5
    model.d_model = 64
    assert init_std(model) == 1 / 8
    model.init_std = 0.02
    assert init_std(model) == 0.02
    assert token_std(model) == pytest.approx(0.02 * 8)
