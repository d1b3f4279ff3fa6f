"""Episode learners against plain loops in float64, at every end of a stream; what their settings do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import config_dict

from longmem_jax.errors import UsageError
from longmem_jax.lifelong import episodes, episodic, heads
from longmem_jax.lifelong.meta_gradient import batches, gradient, meta_gradient
from longmem_jax.lifelong.methods import anml_er, maml_er, oml_er
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows, take
from tests.parity_systems.lifelong_episodes import Bag

METHODS = {'oml_er': oml_er, 'maml_er': maml_er, 'anml_er': anml_er}
# The second and third are in the slow tier.
FIRST = ['oml_er', *(pytest.param(n, marks=pytest.mark.slow) for n in ('maml_er', 'anml_er'))]
BATCH, UPDATES = 2, 2
RATE = 0.3


def make_stream(count, seed=0):
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, 11, (count, 4))
    tokens[np.arange(count), generator.integers(1, 5, count) % 4] = -1
    labels = generator.integers(0, 3, count)
    return Rows(jnp.asarray(tokens), jnp.zeros((count, 4), jnp.uint8), jnp.asarray(labels))


def make_plan(name='oml_er', optimizer=None, **changes):
    settings = METHODS[name].METHOD.settings | dict(
        updates=UPDATES, inner_rate=RATE, adapt_steps=UPDATES, capacity=64, dropout=False,
        replay_every=8, replay_rate=0.4,
    )  # fmt: skip
    assert set(changes) <= set(settings)
    settings = config_dict.FrozenConfigDict(settings | changes)
    assert not METHODS[name].METHOD.check(settings)
    network = Network(Bag(11, 3, 5), heads.Classes(3))
    return METHODS[name].plan(network, settings, optimizer or optax.sgd(0.5), BATCH)


def run(plan, stream, state=None):
    """Learns a stream to its end."""
    learner = episodes.make(plan)
    state = learner.init(jax.random.key(3)) if state is None else state
    seen = []
    while int(state.position) < len(stream):
        before = int(state.position)
        state, metrics = learner.observe(state, stream)
        assert before < int(state.position) <= before + learner.most_rows
        seen.append(jax.tree.map(float, metrics))
    return state, seen


def assert_close(ours, reference, tolerance=2e-6):
    assert jax.tree.structure(ours) == jax.tree.structure(reference)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
        scale = max(1.0, np.abs(b).max())
        np.testing.assert_allclose(np.asarray(a, np.float64), b, atol=tolerance * scale, rtol=0)


def same(first, second):
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


# A plain reference in float64.


def as_double(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), tree)


def plain_encode(params, tokens):
    valid = (tokens >= 0)[..., None]
    mean = (params['embedding'][tokens] * valid).sum(axis=1) / valid.sum(axis=1)
    return jnp.tanh(mean @ params['dense']['kernel'] + params['dense']['bias'])


def plain_gate(params, tokens):
    first, second = params['gate']['first'], params['gate']['second']
    x = plain_encode(params['modulator'], tokens) @ first['kernel'] + first['bias']
    x = jnp.where(x > 0, x, 0) @ second['kernel'] + second['bias']
    return 1 / (1 + jnp.exp(-x))


def plain_logits(params, tokens):
    hidden = plain_encode(params['encoder'], tokens)
    if 'gate' in params:
        hidden = hidden * plain_gate(params, tokens)
    return hidden @ params['head']['kernel'] + params['head']['bias']


def plain_loss(params, stream, numbers):
    tokens, labels = np.asarray(stream.tokens)[numbers], np.asarray(stream.answer)[numbers]
    logits = plain_logits(params, tokens)
    right = logits[jnp.arange(len(numbers)), labels]
    return (jnp.log(jnp.exp(logits).sum(axis=1)) - right).mean()


def plain_adapt(fast, rest, stream, support):
    for numbers in support:
        found = jax.grad(lambda p, n=numbers: plain_loss(rest | p, stream, n))(fast)
        fast = jax.tree.map(lambda w, g: w - RATE * g, fast, found)
    return fast


def plain_meta_gradient(params, frozen, names, stream, support, queries, second_order):
    """Of the sum of the mean losses of the queries."""
    fast = {k: v for k, v in params.items() if k in names}
    slow = {k: v for k, v in params.items() if k not in names}

    def query(fast, slow):
        return sum(plain_loss(frozen | slow | fast, stream, numbers) for numbers in queries)

    def whole(fast, slow):
        return query(plain_adapt(fast, frozen | slow, stream, support), slow)

    if second_order:
        found = jax.grad(whole, argnums=(0, 1))(fast, slow)
    else:
        adapted = plain_adapt(fast, frozen | slow, stream, support)
        found = jax.grad(query, argnums=(0, 1))(adapted, slow)
    return found[0] | found[1]


@pytest.mark.parametrize('name', FIRST)
def test_meta_gradients(name):
    """Of the first and of the second order, which differ."""
    plans = [make_plan(name, second_order=second_order) for second_order in (False, True)]
    plan, stream = plans[0], make_stream(12)
    state = episodes.init(plan, jax.random.key(1))
    support, queries = [[0, 1], [2, 3], [4]], [[5, 6], [7, 7], [0, 9]]
    numbers = jnp.asarray([[0, 1], [2, 3], [4, 5]])
    there = jnp.asarray([[True, True], [True, True], [True, False]])
    asked = batches(stream, jnp.asarray(queries), jnp.ones((3, 2), bool))

    @jax.jit
    def ours(params):
        return [
            meta_gradient(
                plan.network, params, state.own, batches(stream, numbers, there),
                lambda params: gradient(plan.network, params, state.own, asked), each.inner,
            )
            for each in plans
        ]  # fmt: skip

    found = jax.device_get(ours(state.params))

    @jax.jit  # one program: one by one, the operations take far longer to compile
    def plain(params, own):
        given = params, own, plan.fast, stream, support, queries
        rest = own | {k: v for k, v in params.items() if k not in plan.fast}
        fast = {k: params[k] for k in plan.fast}
        return (
            [plain_meta_gradient(*given, second_order) for second_order in (False, True)],
            plain_adapt(fast, rest, stream, support),
            plain_loss(params | own, stream, support[0]),
        )

    with jax.enable_x64(True):
        wanted, adapted, first = jax.device_get(
            plain(as_double(state.params), as_double(state.own))
        )
    for (gradients, fast, read, _), expected in zip(found, wanted, strict=True):
        assert_close(gradients, expected)
        assert_close(fast, adapted)
        np.testing.assert_allclose(read.loss[0], first, rtol=1e-5)
    distance = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, wanted), strict=True)]
    assert max(distance) > 1e-3


def plain_stream(plan, state, stream, summed):
    """A whole stream in a plain loop: every second episode replays what `drawn` of the memory says."""
    params, frozen = as_double(state.params), as_double(state.own)
    memory, position, updates, count = [], 0, 0, len(stream)
    for episode in range(100):
        ends = [position + i * BATCH for i in range(UPDATES + 1)]
        parts = [list(range(at, min(at + BATCH, count))) for at in ends]
        if not all(parts[:UPDATES]):
            break
        support, replay = parts[:UPDATES], episode % 2 == 1
        memory += [row for part in support for row in part]
        position = min(position + UPDATES * BATCH, count)
        if replay:
            rows = [memory[(7 * i + 3) % len(memory)] for i in range(2 if summed else 3)]
            queries = [rows]
        else:
            memory += parts[-1]
            position = min(position + BATCH, count)
            queries = [parts[-1]]
        if not queries[0]:
            break
        given = frozen, plan.fast, stream, support, queries, False
        found = jax.jit(lambda params, given=given: plain_meta_gradient(params, *given))(params)
        params = jax.tree.map(lambda w, g: w - 0.5 * g, params, found)
        updates += 1
    return params, memory, updates


# Episodes begin at the rows 0, 6 (replays), 10, 16 (replays), 20.
@pytest.mark.parametrize(
    'count', [15, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 12, 13, 14, 17, 19, 20))]
)
def test_a_stream_ends_anywhere(count, monkeypatch):
    def draw(memory, key, shape):
        place = (7 * jnp.arange(np.prod(shape)) + 3) % jnp.maximum(memory.size, 1)
        return memory.numbers[place].reshape(shape), memory.size > 0

    monkeypatch.setattr(episodic, 'draw', draw)
    plan, stream = make_plan('oml_er'), make_stream(count)
    assert plan.replayed == 3  # of two batches, the second is not full
    start = episodes.init(plan, jax.random.key(3))
    state, seen = run(plan, stream)
    with jax.enable_x64(True):
        params, memory, updates = plain_stream(plan, start, stream, summed=False)
        assert_close(state.params, params, 1e-5)
    assert sum(each['updates'] for each in seen) == updates
    assert int(state.position) == count and int(state.skipped) == 0
    np.testing.assert_array_equal(state.memory.numbers[: int(state.memory.count)], memory)
    replays = [each['replayed'] for each in seen if each['updates']]
    assert replays == [3 * (i % 2) for i in range(updates)]


@pytest.mark.parametrize('name', METHODS)
def test_the_release_sums_gradients_of_batches(name):
    """A replay of 4 batches has 4 times the gradient of a replay of their rows as one."""
    stream, drawn = make_stream(20), jnp.asarray([[0, 3], [1, 9], [5, 5], [2, 8]])
    grads = []
    for summed in (False, True):
        plan = make_plan(name, replay_rate=1.0, replay_summed=summed)
        state = episodes.init(plan, jax.random.key(0))
        query = episodes.replay_batches(plan, stream, drawn)
        grads.append(gradient(plan.network, state.params, state.own, query)[0])
    assert_close(grads[1], jax.tree.map(lambda g: 4 * np.float64(g), grads[0]))


@pytest.mark.slow
def test_the_default_is_not_the_release():
    for name, released in (
        ('oml_er', episodes.released()),
        ('maml_er', episodes.released()),
        ('anml_er', anml_er.released()),
    ):
        settings = METHODS[name].METHOD.settings
        assert set(released['method']) <= set(settings)
        assert all(settings[field] != value for field, value in released['method'].items())
    # And its numbers are others, even without dropout: two batches have twice the gradient of one.
    stream = make_stream(10)
    ours, _ = run(make_plan(replay_rate=0.5), stream)
    theirs, _ = run(make_plan(replay_rate=0.5, replay_summed=True), stream)
    assert not same(ours.params['head'], theirs.params['head'])
    assert anml_er.released()['method']['train_modulator']
    assert heads.Candidates(np.zeros((1, 1))).over_inputs is False


def test_the_gate_is_the_papers():
    plan = make_plan('anml_er')
    state = episodes.init(plan, jax.random.key(0))
    rows = make_stream(5)
    params = state.own | state.params
    ours = plan.network.scores(params, rows)
    with jax.enable_x64(True):
        params = as_double(params)
        np.testing.assert_allclose(ours, plain_logits(params, np.asarray(rows.tokens)), atol=2e-6)
        opened = np.asarray(plain_gate(params, np.asarray(rows.tokens)))
    assert 0 < opened.min() < opened.max() < 1


@pytest.mark.slow
def test_the_modulator_is_frozen_unless_asked():
    stream = make_stream(20)
    plan = make_plan('anml_er', optax.adamw(0.1, weight_decay=0.5))
    start = episodes.init(plan, jax.random.key(3))
    state, _ = run(plan, stream)
    assert same(start.own, state.own) and set(state.own) == {'modulator'}
    assert not same(start.params['gate'], state.params['gate'])
    plan = make_plan('anml_er', train_modulator=True)
    start = episodes.init(plan, jax.random.key(3))
    state, _ = run(plan, stream)
    assert state.own == {} and not same(start.params['modulator'], state.params['modulator'])


def test_parameters_of_the_optimizer():
    network = Network(Bag(11, 3, 5), heads.Classes(3))
    for name, parts in (
        ('oml_er', {'encoder', 'head'}),
        ('maml_er', {'encoder', 'head'}),
        ('anml_er', {'encoder', 'head', 'gate'}),
    ):
        method = METHODS[name].METHOD
        settings = config_dict.FrozenConfigDict(method.settings)
        shapes = jax.eval_shape(
            lambda method=method, settings=settings: method.parameters(
                network, settings, jax.random.key(0)
            )
        )
        assert set(shapes) == parts
        learner = method.make(network, settings, optax.adam(1e-3), 16)
        params = jax.eval_shape(learner.init, jax.random.key(0)).params
        assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)


@pytest.mark.slow
def test_without_its_gate_anml_is_maml():
    stream = make_stream(20)
    first, _ = run(make_plan('anml_er', gate=False), stream)
    second, _ = run(make_plan('maml_er'), stream)
    assert same(first.params, second.params)


def test_inner_steps_change_what_they_should():
    stream = make_stream(20)
    for name in METHODS:
        plan = make_plan(name)
        state = episodes.init(plan, jax.random.key(3))
        drawn = jnp.asarray([[0, 3], [4, 5]])
        params, _ = episodes.adapt(plan, state, stream, drawn, jnp.asarray(True))
        changed = {part for part in params if not same(params[part], state.params[part])}
        assert changed == set(plan.fast)


def test_resumed_after_every_episode():
    plan, stream = (
        make_plan('anml_er', optax.adam(0.1), write_rate=0.5, dropout=True),
        make_stream(33),
    )
    whole, seen = run(plan, stream)
    observe = episodes.make(plan).observe
    state = episodes.init(plan, jax.random.key(3))
    for _ in seen:
        raw = state.replace(key=jax.random.key_data(state.key))
        leaves, structure = jax.tree.flatten(raw)
        raw = jax.tree.unflatten(structure, [np.array(leaf) for leaf in leaves])
        state = raw.replace(key=jax.random.wrap_key_data(raw.key))
        state, _ = observe(state, stream)
    plain = [s.replace(key=jax.random.key_data(s.key)) for s in (state, whole)]
    assert same(*plain)
    assert 0 < int(state.memory.count) < len(stream)


@pytest.mark.slow
def test_a_capacity_of_0_is_no_replay():
    stream, rows = make_stream(33), make_stream(7, seed=1)
    nothing, seen = run(make_plan(capacity=0), stream)
    plan = make_plan(replay=False)
    without, _ = run(plan, stream)
    assert same(nothing.params, without.params)
    assert not any(each['replayed'] for each in seen) and int(nothing.memory.size) == 0
    predict = episodes.make(make_plan(capacity=0)).predict(nothing, stream, rows, jax.random.key(0))
    plain = episodes.make(make_plan(adapt_steps=0)).predict(
        without, stream, rows, jax.random.key(0)
    )
    assert same(predict, plain)
    adapted = episodes.make(plan).predict(without, stream, rows, jax.random.key(0))
    assert not same(adapted, plain)


@pytest.mark.slow
def test_an_episode_with_nothing_to_replay_reads_its_query_from_the_stream():
    """Rows of the stream are read once, whatever was written."""
    plan, stream = make_plan(write_rate=0.0), make_stream(33)
    state, seen = run(plan, stream)
    assert not any(each['replayed'] for each in seen)
    other, _ = run(make_plan(replay=False), stream)
    assert same(state.params, other.params)


@pytest.mark.slow
def test_rows_are_written_with_a_probability():
    plan, stream = make_plan(write_rate=0.25, capacity=400), make_stream(400)
    state, _ = run(plan, stream)
    assert 60 < int(state.memory.count) < 140
    numbers = np.asarray(state.memory.numbers[: int(state.memory.count)])
    assert (np.diff(numbers) > 0).all()


@pytest.mark.slow
def test_predictions_do_not_depend_on_other_rows_or_on_answers():
    plan, stream, rows = make_plan('anml_er'), make_stream(33), make_stream(7, seed=1)
    state, _ = run(plan, stream)
    predict = episodes.make(plan).predict
    key = jax.random.key(0)
    scores = predict(state, stream, rows, key)
    assert scores.shape == (7, 3)
    some = predict(state, stream, take(rows, jnp.asarray([6, 2, 3])), key)
    np.testing.assert_allclose(some, scores[jnp.asarray([6, 2, 3])], atol=1e-6)
    assert same(scores, predict(state, stream, rows.replace(answer=rows.answer * 0), key))
    assert not same(scores, predict(state, stream, rows, jax.random.key(1)))


@pytest.mark.parametrize('name', FIRST)
def test_answers_are_those_of_parameters_that_learned_batches_of_the_memory(name):
    """As many batches as in training, each drawn by itself; written out in float64."""
    plan, stream, rows = make_plan(name, adapt_steps=-1), make_stream(33), make_stream(7, seed=1)
    state, key = run(plan, stream)[0], jax.random.key(5)
    held = np.asarray(state.memory.numbers[: int(state.memory.count)])
    drawn = held[np.asarray(jax.random.randint(key, (UPDATES, BATCH), 0, len(held)))]
    assert sorted(drawn[0]) != sorted(drawn[1])
    scores = episodes.make(plan).predict(state, stream, rows, key)
    with jax.enable_x64(True):
        params = as_double(state.own) | as_double(state.params)
        fast = {part: leaf for part, leaf in params.items() if part in plan.fast}
        rest = {part: leaf for part, leaf in params.items() if part not in plan.fast}
        wanted = plain_logits(
            rest | plain_adapt(fast, rest, stream, drawn), np.asarray(rows.tokens)
        )
        np.testing.assert_allclose(scores, wanted, atol=1e-5)


def test_as_many_steps_before_a_test_as_in_training():
    assert make_plan(adapt_steps=-1, updates=3).adapt_steps == 3
    assert make_plan(adapt_steps=0).adapt_steps == 0
    for method in METHODS.values():
        assert method.METHOD.settings['adapt_steps'] == -1
    lines = episodes.make(make_plan(adapt_steps=5)).schedule(33)
    assert 'trained to answer after 2 inner steps, and tested after 5' in lines[-1]
    assert 'Note' not in ''.join(episodes.make(make_plan(adapt_steps=-1)).schedule(33))


class Wrong(Bag):
    """An encoder of which a text with token 10 is not finite."""

    def encode(self, params, inputs, key=None):
        wrong = params['embedding'].at[10].set(jnp.nan)
        return super().encode({**params, 'embedding': wrong}, inputs, key)


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_skipped_and_counted():
    plan, stream = make_plan(optimizer=optax.adam(0.1)), make_stream(33)
    plan = plan._replace(network=Network(Wrong(11, 3, 5), heads.Classes(3)))
    tokens = stream.tokens.at[:, :].set(jnp.where(stream.tokens == 10, 9, stream.tokens))
    stream = stream.replace(tokens=tokens.at[10, 0].set(10))  # in the support of the third episode
    state = episodes.init(plan, jax.random.key(3))
    observe, states = episodes.make(plan).observe, [state]
    for _ in range(4):
        state, metrics = observe(state, stream)
        states.append(state)
    assert [int(each.skipped) for each in states[:4]] == [0, 0, 0, 1]
    assert same(states[2].params['head'], states[3].params['head'])
    assert same(states[2].optimizer, states[3].optimizer) and same(
        states[2].memory, states[3].memory
    )
    assert int(states[3].position) == 16 and int(states[4].skipped) == 0
    assert int(metrics['updates']) == 1


@pytest.mark.slow
def test_dropout_is_of_training_alone():
    stream, rows = make_stream(20), make_stream(7, seed=1)
    plan = make_plan(dropout=True)
    state, _ = run(plan, stream)
    plain, _ = run(make_plan(), stream)
    assert not same(state.params, plain.params)
    key = jax.random.key(0)
    found = [episodes.make(each).predict(state, stream, rows, key) for each in (plan, make_plan())]
    assert same(*found)


def test_what_it_will_do_is_said():
    first, second, third = episodes.make(make_plan('maml_er')).schedule(33)
    assert 'encoder and head' in first and '3 rows' in second and '3 times' in second
    assert '2 batches of the memory' in third
    lines = episodes.make(make_plan(replay=False, adapt_steps=0)).schedule(33)
    assert lines[1:] == ['Nothing is replayed.']


@pytest.mark.parametrize(
    'changes, stream',
    [
        (dict(replay_rate=0.01), 33),
        (dict(replay_rate=0.15, replay_summed=True), 33),
        (dict(replay_every=800), 33),
        (dict(capacity=0), 33),
        (dict(write_rate=0.0), 33),
    ],
)
def test_a_replay_that_would_not_be_is_refused(changes, stream):
    with pytest.raises(UsageError, match='replay'):
        episodes.make(make_plan(**changes)).schedule(stream)


def test_problems_name_their_fields():
    for method in METHODS.values():
        settings = dict(method.METHOD.settings)
        assert not method.METHOD.check(settings)
        wrong = dict(
            updates=0, inner_rate=0.0, write_rate=1.5, capacity=-1, adapt_steps=-2, replay_every=0,
            replay_rate=0.0,
        )  # fmt: skip
        problems = method.METHOD.check(settings | wrong)
        assert sorted(problem.split()[0] for problem in problems) == sorted(wrong)
        assert not method.METHOD.check(settings | dict(replay=False, replay_every=0))
