"""What the library adds to a recurrent memory: rules of its fields, positions, values handed on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax import registry
from longmem_jax.author import Lane, RecurrentMemory, field, memory
from longmem_jax.errors import UsageError
from longmem_jax.generation.reader import fresh_state
from longmem_jax.layers.projections import Projections
from longmem_jax.standalone import make_layer
from tests.toys import BATCH, LENGTH, parameters, random_segments, run, with_config

EDGE = 2**31 - 1


class First(RecurrentMemory):
    """Sums of values, in later layers mixed with those of the first layer."""

    share: float = field(0.5, 'share of the first layer', least=0)
    groups: int = field(0, 'groups of heads; 0 = as many', divides='num_heads', share='num_heads')
    kind: str = field('sum', 'what is kept', among=('sum', 'last'))

    def parts(self):
        self.projections = Projections(self.settings)

    def state(self):
        return jnp.zeros((self.settings.head_dim,), self.float32)

    def inputs(self, x, lane):
        values = self.projections.values(x)
        first = lane.carried.get('first', values)
        lane.hand_on(first=first)
        return ((1 - self.share) * values + self.share * first,)

    def step(self, state, value):
        return state + value, state + value

    def output(self, x, y, *inputs):
        return self.projections.out(y)


@pytest.fixture(autouse=True)
def registered():
    registry.register('memory', 'first', memory('first', First))
    yield
    registry.unregister('memory', 'first')


def test_values_are_handed_on_to_later_layers_in_segments_and_streams():
    model = with_config('first', layers=2)
    params, segments = parameters(model), random_segments(segments=2)
    logits, states = run(model, params, segments)
    alone = with_config('first', layers=2, first=model.config.first.to_dict() | dict(share=0.0))
    assert np.abs(run(alone, params, segments)[0] - logits).max() > 1e-3
    assert not any(state.attention.carried for state in states), 'a state has what was handed on'

    @functools.partial(jax.jit, static_argnums=2)
    def extend(tokens, cache, n):
        count = jnp.full((BATCH,), n, jnp.int32)
        given = (tokens, cache, jnp.zeros((BATCH,), jnp.int32), count)
        return model.apply({'params': params}, *given, method='extend')

    cache = fresh_state(model, params, BATCH)
    tokens = segments.tokens[0]
    for position in range(LENGTH):
        found, cache = extend(tokens[:, position : position + 1], cache, 1)
        np.testing.assert_allclose(found[:, 0], logits[0, :, position], atol=2e-5)


@pytest.mark.parametrize(
    'wrong, said',
    [
        (dict(share=-1.0), 'share = -1.0: must be at least 0'),
        (dict(groups=3), 'groups = 3: must divide num_heads = 2'),
        (dict(kind='lost'), "kind = 'lost'"),
        (dict(chunk=0), 'chunk = 0: must be at least 1'),
    ],
)
def test_fields_keep_their_rules(wrong, said):
    sizes = dict(d_model=16, num_heads=2, segment_length=4)
    with pytest.raises(UsageError, match=said):
        make_layer('first', **sizes, **wrong)


def test_fields_are_documented():
    assert 'share: share of the first layer.' in First.__doc__
    assert First.__doc__.count('Attributes:') == 1


def test_positions_count_from_the_start_of_a_document_and_stay():
    def positions(before, start):
        start = None if start is None else jnp.asarray(start)
        lane = Lane(jnp.int32(before), jnp.int32(4), start, {}, False, {})
        return lane.positions(4).tolist()

    assert positions(7, None) == [7, 8, 9, 10]
    assert positions(7, [False, True, False, True]) == [7, 0, 1, 0]
    assert positions(EDGE - 1, None) == [EDGE - 1, EDGE, EDGE, EDGE]
