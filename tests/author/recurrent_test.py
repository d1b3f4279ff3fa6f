"""What the library adds to a recurrent memory: rules of its fields, positions, values handed on."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax import registry, standalone
from longmem_jax.author import Lane, RecurrentMemory, field, memory, param
from longmem_jax.author.fields import problems
from longmem_jax.errors import UsageError
from longmem_jax.generation.reader import fresh_state
from longmem_jax.layers.projections import Projections
from longmem_jax.standalone import make_layer
from longmem_jax.testing import conformance
from tests.toys import BATCH, LENGTH, parameters, random_segments, run, with_config

EDGE = 2**31 - 1


class First(RecurrentMemory):
    """Sums of values, in later layers mixed with those of the first layer."""

    share: float = field(0.5, 'share of the first layer', least=0)
    kept: float = field(0.5, 'share that is kept', least=0, below=1)
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
        (dict(kept=1.0), 'kept = 1.0: must lie between 0 and 1, excluding 1'),
        (dict(kept=-0.5), 'kept = -0.5: must lie between 0 and 1, excluding 1'),
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


def changed(**functions):
    """A layer of `First` with other functions, under its name."""
    standalone._start.clear_cache()  # by the name of the memory
    wrong = type('Wrong', (First,), {'__module__': __name__, **functions})
    registry.unregister('memory', 'first')
    registry.register('memory', 'first', memory('first', wrong))
    return make_layer('first', d_model=16, num_heads=2, segment_length=4)


def logs(values):
    """`inputs` that logs these."""

    def inputs(self, x, lane):
        lane.log(**values)
        return First.inputs(self, x, lane)

    return inputs


def parts(*dims):
    """`parts` with a parameter of these dimensions."""

    def make(self):
        First.parts(self)
        self.scale = param(*dims)

    return make


@pytest.mark.parametrize(
    'function, wrong, said',
    [
        ('parts', parts('d_modle'), r"Wrong.scale: dimension = 'd_modle': did you mean 'd_model'"),
        ('parts', parts('d_model', -1), r'Wrong.scale: shape \(16, -1\): sizes must be at least 1'),
        ('inputs', lambda self, x, lane: x, r'Wrong.inputs: gave float32\[4, 16\]; return a tuple'),
        (
            'inputs',
            lambda self, x, lane: (x,),
            r'number 0 is an array \[4, 16\]: must be .* \[2, 4, ',
        ),
        ('inputs', lambda self, x, lane: (None,), r'number 0 is NoneType: must be'),
        (
            'inputs',
            logs(dict(gate=jnp.ones(()))),
            r'lane.log\(gate=...\) has the shape \[\]: must be',
        ),
        ('inputs', logs(dict(memory_size=jnp.ones(4))), 'memory_size=.* use another name'),
        (
            'step',
            lambda self, state, value: state,
            r'Wrong.step: gave float32\[8\]; return two things',
        ),
        (
            'step',
            lambda self, state, value: ([state], state),
            r'Wrong.step: gives the new state \[',
        ),
        (
            'step',
            lambda self, state, value: (state[:3], state),
            r'float32\[3\]: must be .*float32\[8\]',
        ),
        (
            'step',
            lambda self, S, value: (S.astype('bfloat16'), S),
            r'bfloat16\[8\]: must be .*float32',
        ),
        (
            'chunked',
            lambda self, S, sight, value: S,
            r'Wrong.chunked: gave float32\[8\]; return two things',
        ),
        (
            'output',
            lambda self, x, y, value: y,
            r'Wrong.output: gave float32\[2, 4, 8\]: must be .* y is float32\[2, 4, 8\]',
        ),
    ],
)
def test_a_wrong_function_is_named_with_what_it_must_return(function, wrong, said):
    layer = changed(**{function: wrong})
    x = jnp.ones((1, 4, 16))
    with pytest.raises(UsageError, match=said):
        jax.eval_shape(layer.init, jax.random.key(0), x, layer.start(1))


def too_long(self, state, value):
    """A step that fails in its last line."""
    return state, jnp.ones(5) * value


def with_heads(self):
    """A state with the axis that the library adds."""
    return jnp.zeros((2, self.settings.head_dim), self.float32)


def sets(self, x, lane):
    """`inputs` that keep something in an attribute."""
    self.last = x
    return First.inputs(self, x, lane)


@pytest.mark.parametrize(
    'functions, said',
    [
        (
            dict(step=lambda self, state: (state, state)),
            r'Wrong.step: takes \(state\) but is given 2: the state, and what `inputs` and `constants` '
            r'return, here float32\[8\], float32\[8\]. Both must be as many',
        ),
        (
            dict(step=lambda self, state, value, gate: (state, state)),
            r'Wrong.step: takes \(state, value, gate\) but is given 2',
        ),
        (
            dict(chunked=lambda self, state, value: (state, value)),
            r'Wrong.chunked: takes \(state, value\) but is given 3: the state, the sight, and what',
        ),
        (
            dict(inputs=lambda self, x: (x,)),
            r'Wrong.inputs: takes \(x\) but is given 2: x of a lane',
        ),
        (dict(output=lambda self, x, y: y), r'Wrong.output: takes \(x, y\) but is given 3: x'),
        (
            dict(step=too_long),
            r'Wrong.step: .*[(]recurrent_test.py, line \d+: return state, jnp.ones[(]5[)] [*] value[)].*'
            r'It was given state float32\[8\], value float32\[8\]\.',
        ),
        (
            dict(step=lambda self, S, value: (S, S if value[0] > 0 else value)),
            'TracerBoolConversionError: .* An `if` cannot depend on an array: use jnp.where',
        ),
        (
            dict(inputs=sets),
            'SetAttributeFrozen.* Attributes are set in `parts`; what later tokens',
        ),
        (
            dict(state=with_heads),
            r'Wrong.output: .*`state` gives float32\[2, 8\]: it must be of one lane and head, and the '
            'library adds both axes. Is there one too many',
        ),
        (dict(state=lambda self: None), 'Wrong.state: gave None; return an array, or a dict'),
        (dict(state=lambda self: dict(S=0.0)), 'Wrong.state: gave 0.0; return an array'),
        (dict(parts=lambda self: self.to_head()), 'Wrong.parts: AttributeError: .*to_head'),
    ],
)
def test_an_error_in_a_function_names_it_the_line_and_what_was_given(functions, said):
    layer = changed(**functions)
    x = jnp.ones((1, 4, 16))
    with pytest.raises(UsageError, match=said):
        layer.init(jax.random.key(0), x, layer.start(batch_size=1))


def test_a_field_that_is_declared_wrongly_is_told_how_to_write_it():
    for message, declared in (
        (
            'Wrong.size: has no default; write size: int = field',
            dict(__annotations__=dict(size=int)),
        ),
        ('Wrong.size: has no type; write size: int = field', dict(size=field(4, 'slots'))),
    ):
        with pytest.raises(UsageError, match=message):
            type('Wrong', (First,), {'__module__': __name__, **declared})
    with pytest.raises(UsageError, match=r"field 'slots': default = \[4\]: must be a number"):
        field([4], 'slots')
    with pytest.raises(
        UsageError, match=r"name = .* of the type .*: give memory\('gated_sums', Gat"
    ):
        memory(First, 'first')


class Counted(First):
    """A state whose first array is a count; its input of ones is 0 at padding."""

    def state(self):
        return dict(number=jnp.zeros((), jnp.int32), sums=First.state(self))

    def inputs(self, x, lane):
        values = self.projections.values(x)
        return values, jnp.ones(values.shape[:2], values.dtype)

    def step(self, state, value, one):
        sums = state['sums'] + value
        return dict(number=(state['number'] + one.astype(jnp.int32)) % 4, sums=sums), sums

    def chunked(self, state, sight, values, ones):
        before, more = sight.before[-1].astype(jnp.int32), (sight.at_end * ones).sum()
        sums = state['sums'] * sight.before[:, None] + sight.pairs @ values
        number = before * state['number'] + more.astype(jnp.int32)
        return dict(number=number % 4, sums=sums[-1]), sums


def test_a_state_may_have_whole_numbers():
    """The suite differentiates the others; what a chunk sees is told in their dtype."""
    registry.unregister('memory', 'first')
    registry.register('memory', 'first', memory('first', Counted))
    conformance.check('first', 'chunks_are_steps')


def own_setup(self):
    """What linen has in place of `parts`."""


def test_what_an_author_must_write_is_asked_for_at_once():
    with pytest.raises(UsageError, match='wrong: Empty has no parts, state, inputs, step, output'):
        memory('wrong', type('Empty', (RecurrentMemory,), {}))
    with pytest.raises(UsageError, match='wrong: Module is no RecurrentMemory; derive'):
        memory('wrong', nn.Module)
    with pytest.raises(UsageError, match='wrong: Own has a setup; call it parts'):
        memory('wrong', type('Own', (First,), {'setup': own_setup}))
    taken = {'__annotations__': {'d_model': int}, 'd_model': field(3, 'a width')}
    with pytest.raises(UsageError, match='Taken.d_model: is a size of the model'):
        memory('wrong', type('Taken', (First,), taken))
    with pytest.raises(UsageError, match="field 'a share': below = 1 needs least or above"):
        field(0.5, 'a share', below=1)
    either = field(None, 'either', among=iter('ab'), least=None)
    assert either.metadata['among'] == ('a', 'b'), 'the values are asked for more than once'
    optional = type('Optional', (First,), {
        '__annotations__': {'size': int | None}, 'size': field(None, 'a size', least=3)
    })  # fmt: skip
    given = dict(
        size=None, share=0.5, kept=0.5, groups=0, kind='sum', chunk=1, carry=True, gradients=True
    )
    assert problems(optional, given, dict(num_heads=2)) == []


@pytest.mark.parametrize('rule', ['divides', 'share'])
def test_a_rule_names_what_models_have(rule):
    wrong = type(
        'Wrong',
        (First,),
        {'__annotations__': {'new': int}, 'new': field(0, 'new', **{rule: 'd_modle'})},
    )
    with pytest.raises(UsageError, match=f"Wrong.new: {rule} = 'd_modle': did you mean 'd_model'"):
        memory('wrong', wrong)
