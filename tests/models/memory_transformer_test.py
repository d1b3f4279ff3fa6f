"""Memory transformers: the carried state, and the reach of gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.config.model_checks import model_faults
from longmem_jax.data.lanes import Batch
from longmem_jax.generation.reader import fresh_state
from longmem_jax.retrieval.reading import look
from tests.toys import BATCH, LENGTH, VOCAB, model_config, random_segments, run, toy, with_config

KIND = 'memory_transformer'


def fields(carry=True, gradients=True, **changes):
    own = dict(model_config(KIND).memory_tokens) | dict(memory_length=0)
    return dict(
        memory_transformer=dict(carry=carry, gradients=gradients), memory_tokens=own | changes
    )


def changed_first(segments):
    tokens = segments.tokens.at[0, :, :3].set((segments.tokens[0, :, :3] + 1) % VOCAB)
    return segments.replace(tokens=tokens)


@pytest.mark.parametrize('carry', [True, False])
def test_only_carried_tokens_tell_of_the_segment_before(carry):
    model, (_, params) = with_config(KIND, **fields(carry=carry)), toy(KIND)
    segments = random_segments()
    logits, _ = run(model, params, segments)
    other, _ = run(model, params, changed_first(segments))
    difference = np.abs(logits[1:] - other[1:]).max(axis=(1, 2, 3))
    assert (difference > 1e-5).all() if carry else (difference == 0).all()


@pytest.mark.parametrize('gradients', [True, False])
def test_gradients_pass_carried_tokens_or_not(gradients):
    model = with_config(KIND, **fields(gradients=gradients))
    _, params = toy(KIND)
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


def test_leading_tokens_do_not_see_the_segment():
    """Otherwise a token could receive information from later ones."""

    def written(model, params):
        read = jax.jit(
            lambda part, state: model.apply({'params': params}, part, state, method='written')
        )
        state = fresh_state(model, params, BATCH)
        return [read(part, state) for part in (first, other)]

    first = jax.tree.map(lambda leaf: leaf[0], random_segments())
    last = (first.tokens[:, -1] + 1) % VOCAB
    other = first.replace(tokens=first.tokens.at[:, -1].set(last))
    np.testing.assert_array_equal(*written(*toy(f'{KIND}:leading')))
    one, two = written(*toy(KIND))
    assert np.abs(one - two).max() > 1e-5


def test_the_released_positions_differ_only_where_tokens_look_ahead():
    """One memory token never looks ahead; with three, the authors' shift changes the logits."""
    _, params = toy(KIND)
    segments = random_segments()
    for number, same in ((1, True), (3, False)):
        tokens = jnp.asarray(np.random.default_rng(0).normal(size=(number, 16)), jnp.float32)
        own = params | {'memory_tokens': {'tokens': tokens}}
        logits = [
            run(
                with_config(KIND, **fields(num_tokens=number, look_ahead=kind)),
                own,
                segments,
            )[0]
            for kind in ('nearest', 'released')
        ]
        assert (np.abs(logits[0] - logits[1]).max() < 1e-6) == same


def test_keys_of_a_datastore_are_those_of_the_tokens():
    model, params = toy(KIND)
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
    model = model_config(KIND, **fields(carry=True, at_end=False))
    assert any('memory_tokens.at_end = True' in fault for fault in model_faults(model, LENGTH))


def test_all_layers_must_pass_them_on():
    model = model_config(KIND)
    model.attention = ('memory_tokens', 'local')
    model.local = dict(position='rotary')
    assert any(
        "needs 'memory_tokens' in all layers" in fault for fault in model_faults(model, LENGTH)
    )


@pytest.mark.parametrize('kind', ['language_model', 'memformer'])
def test_another_kind_cannot_have_them(kind):
    model = model_config(KIND)
    model.kind = kind
    assert any(
        "needs kind = 'memory_transformer'" in fault for fault in model_faults(model, LENGTH)
    )
