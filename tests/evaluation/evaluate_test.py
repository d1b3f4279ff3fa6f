"""Exact matches of answers, counted across segments."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.config.base import base
from longmem_jax.evaluation.evaluator import exact_answers, passes
from longmem_jax.evaluation.result import memory_lengths


@given(st.data())
def test_exact_answers_counts_as_a_loop_does(data):
    lanes, length, cuts = 2, 12, 3
    scored = np.asarray(
        data.draw(st.lists(st.integers(0, 2), min_size=lanes * length, max_size=lanes * length))
    ).reshape(lanes, length)
    wrong = (
        np.asarray(
            data.draw(st.lists(st.booleans(), min_size=lanes * length, max_size=lanes * length))
        ).reshape(lanes, length)
    ) & (scored > 0)
    wanted = 0
    for lane in range(lanes):
        clean = True
        for place in range(length):
            clean &= not wrong[lane, place]
            if scored[lane, place] == 2:
                wanted += clean
                clean = True
    errors, found = jnp.zeros((lanes,), jnp.int32), 0
    for part in np.split(np.arange(length), cuts):
        exact, errors = exact_answers(
            jnp.asarray(wrong[:, part]), jnp.asarray(scored[:, part], jnp.uint8), errors
        )
        found += int(exact)
    assert found == wanted


def test_the_protocol_names_every_length():
    from configs import memformer_wikitext103, memorizing_pg19, sorting

    found = memory_lengths(memorizing_pg19.get_config('tiny').model)
    assert found == 'normalized_xl 128, memorizing 128 + entries 2048'
    assert memory_lengths(sorting.get_config('tiny').model) == 'infinity_former 64 + functions 64'
    memformer = memformer_wikitext103.get_config('tiny').model
    assert memory_lengths(memformer) == 'memformer + slots 32, local'


@pytest.mark.parametrize('name', ['delta_net', 'gated_delta_net', 't2r', 'hippocampus'])
def test_the_protocol_says_which_memory_of_a_layer_it_is(name):
    from configs import quickstart

    model = quickstart.get_config(f'tiny,memory={name}').model
    assert memory_lengths(model).split(' ')[0] == name


def test_overlapping_windows_are_scored_once():
    """Each is read by itself: there is no memory whose gain could be measured."""
    config = base()
    assert passes(config, 'test') == {'test': False, 'test, memory reset': True}
    config.evaluate.context = 16
    assert passes(config, 'test') == {'test': False}
