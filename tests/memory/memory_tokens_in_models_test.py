"""Memory tokens around the blocks: the carried state, and the reach of gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.config.model_checks import model_problems
from longmem_jax.data.lanes import Batch
from longmem_jax.generation.reader import fresh_state
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.block import Block
from longmem_jax.models.kinds import make_model
from longmem_jax.retrieval.reading import look
from tests.toys import (
    BATCH,
    LENGTH,
    VOCAB,
    model_config,
    parameters,
    random_segments,
    run,
    stream,
    toy,
    with_config,
)  # fmt: skip

NAME = 'memory_tokens'


def fields(**changes):
    """Sections without a cache; a field that both have is not among the changes."""
    model = model_config(NAME)
    changed = {
        section: dict(model[section]) | {k: v for k, v in changes.items() if k in model[section]}
        for section in (NAME, 'mem_transformer')
    }
    changed['mem_transformer']['memory_length'] = 0
    return changed


def changed_first(segments):
    tokens = segments.tokens.at[0, :, :3].set((segments.tokens[0, :, :3] + 1) % VOCAB)
    return segments.replace(tokens=tokens)


@pytest.mark.parametrize('carry', [True, False])
def test_only_carried_tokens_tell_of_the_segment_before(carry):
    model, (_, params) = with_config(NAME, **fields(carry=carry)), toy(NAME)
    segments = random_segments()
    logits, _ = run(model, params, segments)
    other, _ = run(model, params, changed_first(segments))
    difference = np.abs(logits[1:] - other[1:]).max(axis=(1, 2, 3))
    assert (difference > 1e-5).all() if carry else (difference == 0).all()


@pytest.mark.parametrize('gradients', [True, False])
def test_gradients_pass_carried_tokens_or_not(gradients):
    model = with_config(NAME, **fields(gradients=gradients))
    _, params = toy(NAME)
    first, second = (
        jax.tree.map(lambda leaf, n=n: leaf[n], random_segments(segments=2)) for n in range(2)
    )

    def later_loss(written):
        """Of the second segment, by parameters that only the first is read with."""
        state = fresh_state(model, params, BATCH)
        _, state, _ = model.apply({'params': written}, first, state, train=False)
        logits, _, _ = model.apply({'params': params}, second, state, train=False)
        return jax.nn.logsumexp(logits, axis=-1).sum()

    gradient = jax.jit(jax.grad(later_loss))(params)
    size = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient))
    assert size > 1e-4 if gradients else size == 0


@pytest.mark.parametrize('name', [NAME, f'{NAME}:leading'])
def test_leading_tokens_do_not_see_the_segment(name):
    """Otherwise a token could receive information from later ones. Trailing ones see it."""
    model, params = toy(name)
    first = jax.tree.map(lambda leaf: leaf[0], random_segments())
    last = (first.tokens[:, -1] + 1) % VOCAB
    other = first.replace(tokens=first.tokens.at[:, -1].set(last))

    @jax.jit
    def outputs(segment):
        _, found = model.apply(
            {'params': params}, segment, fresh_state(model, params, BATCH), train=False,
            capture_intermediates=lambda module, _: isinstance(module, Block),
        )  # fmt: skip
        return found['intermediates']['block_1']['__call__'][0][0]

    one, two = outputs(first), outputs(other)
    number = model.config.memory_tokens.num_tokens
    np.testing.assert_array_equal(one[:, :number], two[:, :number])
    assert np.abs(one[:, -number:] - two[:, -number:]).max() > 1e-5


def test_the_released_positions_differ_only_where_tokens_look_ahead():
    """One memory token never looks ahead; with three, the authors' shift changes the logits."""
    _, params = toy(NAME, layers=1)
    segments = random_segments()
    for number, same in ((1, True), (3, False)):
        tokens = jnp.asarray(np.random.default_rng(0).normal(size=(number, 16)), jnp.float32)
        own = params | {'around_0': {'memory_tokens': {'tokens': tokens}}}
        logits = [
            run(
                with_config(NAME, layers=1, **fields(num_tokens=number, look_ahead=kind)),
                own,
                segments,
            )[0]
            for kind in ('nearest', 'released')
        ]
        assert (np.abs(logits[0] - logits[1]).max() < 1e-6) == same


def test_keys_of_a_datastore_are_those_of_the_tokens():
    model, params = toy(NAME)
    first = jax.tree.map(lambda leaf: leaf[0], random_segments())
    batch = Batch(
        tokens=first.tokens, targets=first.tokens, valid=first.valid, scored=first.valid,
        start=first.start, num_bytes=None,
    )  # fmt: skip
    state = fresh_state(model, params, BATCH)
    read = jax.jit(lambda batch: look(model, params, state, batch)[1])
    keys, hidden, _ = read(batch)
    assert keys.shape == hidden.shape
    changed = first.tokens.at[:, 2].set((first.tokens[:, 2] + 1) % VOCAB)
    other, _, _ = read(batch.replace(tokens=changed))
    np.testing.assert_allclose(keys[:, :2], other[:, :2], atol=1e-6)
    assert np.abs(keys[:, 2] - other[:, 2]).max() > 1e-3


def test_carried_tokens_must_be_appended():
    model = model_config(NAME, **fields(carry=True, at_end=False))
    assert any('needs at_end = True' in problem for problem in model_problems(model, LENGTH))


@pytest.mark.parametrize(
    'name',
    [
        'transformer_xl',
        *(pytest.param(name, marks=pytest.mark.slow) for name in ('local', 'linear', 'full')),
    ],
)
def test_any_attention_reads_and_writes_them(name):
    """In two of three layers, and in a stream as in whole segments."""
    model = model_config(name, layers=3, around=('', NAME, NAME))
    model[NAME] = LAYERS[NAME].small()
    model = make_model(model, LENGTH)
    params, segments = parameters(model), random_segments()
    logits, states = run(model, params, segments)
    other, _ = run(model, params, changed_first(segments))
    assert np.abs(logits[1:] - other[1:]).max(axis=(1, 2, 3)).min() > 1e-5
    assert states[0].around is None and states[1].around.vectors.shape[2] == 2
    assert states[2].around is None and params['around_1']
    state = fresh_state(model, params, BATCH)
    for number in range(len(segments.tokens)):
        found, state = stream(model, params, segments.tokens[number], state)
        np.testing.assert_allclose(found, logits[number], atol=2e-5)
