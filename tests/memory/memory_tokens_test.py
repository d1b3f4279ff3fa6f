"""The attention layer of memory tokens: visibility, and problems of its section."""

import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.config.model_checks import model_problems
from longmem_jax.memory.memory_tokens.layer import visible
from tests.toys import LENGTH, model_config


def seen(count, end, **changes):
    """Positions of two leading memory tokens, three tokens and two trailing memory tokens."""
    options = dict(leading=2, trailing=2, read_cache=False, window=0) | changes
    found = visible(
        jnp.arange(7, dtype=jnp.int32)[None],
        jnp.arange(-2, 7, dtype=jnp.int32),
        jnp.asarray([count], jnp.int32),
        jnp.asarray([end], jnp.int32),
        **options,
    )
    return [''.join('.x'[int(key)] for key in row) for row in np.asarray(found[0])]


def test_each_group_sees_itself_and_what_is_before():
    assert seen(count=1, end=7) == [
        '..xx.....',
        '..xx.....',
        '.xxxx....',
        '.xxxxx...',
        '.xxxxxx..',
        '..xxxxxxx',
        '..xxxxxxx',
    ]


def test_without_trailing_tokens_the_end_is_causal():
    assert seen(count=0, end=0)[5:] == ['..xxxxxx.', '..xxxxxxx']


def test_a_window_is_for_tokens_and_the_cache_for_memory_tokens_if_so_chosen():
    assert seen(count=2, end=7, read_cache=True, window=2) == [
        'xxxx.....',
        'xxxx.....',
        '...xx....',
        '....xx...',
        '.....xx..',
        'xxxxxxxxx',
        'xxxxxxxxx',
    ]


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(num_tokens=0), 'num_tokens = 0'),
        (dict(look_ahead='far'), 'allowed are nearest, released'),
        (dict(look_ahead='released', position='rotary'), 'needs position'),
        (dict(same_length=True, memory_length=0), 'needs memory_length > 0'),
    ],
)
def test_bad_fields_are_problems(changes, message):
    model = model_config('memory_tokens')
    section = 'memory_tokens' if 'num_tokens' in changes else 'mem_transformer'
    model[section].update(changes)
    assert any(message in problem for problem in model_problems(model, LENGTH))
