"""Attention layers beside the attention of blocks: streams, resets and the gate."""

import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.config.model_checks import model_problems
from longmem_jax.generation.reader import fresh_state
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import make_model
from tests.toys import BATCH, LENGTH, model_config, parameters, random_segments, run, stream


def beside(name, layers=2):
    """(model, parameters) of local attention with `name` beside that of the last block, gate open."""
    config = model_config('local', layers)
    config.beside = ('',) * (layers - 1) + (name,)
    config[name] = LAYERS[name].small()
    assert model_problems(config, LENGTH) == []
    model = make_model(config, LENGTH)
    params = parameters(model)
    last = params[f'block_{layers - 1}']
    last['beside_gate'] = jnp.full_like(last['beside_gate'], 0.7)
    return model, params


@pytest.mark.parametrize(
    'name',
    [
        'linear',
        *(pytest.param(n, marks=pytest.mark.slow) for n in ('transformer_xl', 'expire_span')),
    ],
)
def test_a_stream_reads_what_whole_segments_read(name):
    model, params = beside(name)
    segments = random_segments()
    logits, states = run(model, params, segments)
    state = fresh_state(model, params, BATCH)
    for number in range(len(segments.tokens)):
        found, state = stream(model, params, segments.tokens[number], state)
        np.testing.assert_allclose(found, logits[number], atol=2e-5)
    assert states[0].beside is None and states[1].beside is not None


def test_it_remembers_through_its_gate_alone():
    model, params = beside('linear')
    segments = random_segments()
    other = segments.replace(tokens=segments.tokens.at[0].set((segments.tokens[0] + 1) % 24))
    one, two = (run(model, params, part)[0] for part in (segments, other))
    assert np.abs(one - two).max(axis=(1, 2, 3)).min() > 1e-5
    params['block_1']['beside_gate'] = jnp.zeros_like(params['block_1']['beside_gate'])
    later = [run(model, params, part)[0][1:] for part in (segments, other)]
    np.testing.assert_array_equal(*later)


def test_a_name_that_is_no_attention_is_one_message():
    config = model_config('local')
    config.beside = ('dense', '')
    assert any(
        "config.model.beside = 'dense'" in problem for problem in model_problems(config, LENGTH)
    )
