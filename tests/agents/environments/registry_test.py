"""Environments by name: defaults, and one clear error for every problem."""

import jax
import pytest

from longmem_jax.agents.environments import registry
from longmem_jax.errors import UsageError
from tests.agents.environments.play import SMALL


@pytest.mark.parametrize('name', SMALL)
def test_defaults_are_faultless(name):
    assert registry.check(name, {}) == []
    environment = registry.build(name)
    assert environment.name == name
    assert 1 <= environment.shortest <= environment.longest
    shape = jax.eval_shape(environment.reset, jax.random.key(0))[0]
    assert (shape.shape, shape.dtype) == (
        environment.observation.shape,
        environment.observation.dtype,
    )


def test_an_unknown_environment():
    with pytest.raises(UsageError, match="did you mean 'corridor'.*allowed are corridor"):
        registry.build('coridor')


ERRORS = [
    ('corridor', dict(length=3), 'length: not a field here'),
    ('corridor', dict(longest=0), 'longest = 0: must lie between 1'),
    ('corridor', dict(shortest=9, longest=4), 'longest = 4: must be at least shortest = 9'),
    ('corridor', dict(shortest=1.5), 'shortest: must be an int, got 1.5'),
    ('portal', dict(size=4), 'size = 4: must be odd'),
    ('portal', dict(rooms=1), 'rooms = 1: must lie between 2'),
    ('repeat_previous', dict(steps=4), 'steps = 4: must be above back = 4'),
]


@pytest.mark.parametrize('name,fields,problem', ERRORS)
def test_problems_of_fields(name, fields, problem):
    with pytest.raises(UsageError, match=problem):
        registry.build(name, fields)
