"""The training step: which segments have a gradient."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import mem_transformer_wmt14, sorting
from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.data import lanes
from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.devices import generators, hardware, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, lower_step
from longmem_jax.models import stack
from longmem_jax.training import step as train_step
from longmem_jax.training.identity import model_of, settings_of
from longmem_jax.training.optimizer import make_optimizer
from tests import toys


def small(memory, **changes):
    """Sorting of 32 tokens in segments of 8, by one layer."""
    config = sorting.get_config(f'tiny,memory={memory}')
    config.model.num_layers = 1
    for place in ('attention', 'feed_forward', 'around'):
        config.model[place] = config.model[place][:1]
    config.train.update(segment_length=8, segments_per_step=5, num_lanes=2, **changes)
    config.data.task.length = 32
    if memory == 'infinity_former':
        fields = dict(
            memory_length=8, write_length=8, num_basis=8, widths=(0.1, 0.2), num_samples=8
        )
        config.model.infinity_former.update(fields)
    config.train.loss_weights.update(dict.fromkeys(config.train.loss_weights, 0.0))
    return config


def one_device():
    return sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, memory=1), jax.devices()[:1])


def batch(seed, starts=False):
    """Five full segments of two lanes; `starts`: a document begins in the fourth of the second."""
    tokens = np.random.default_rng(seed).integers(0, 8, (5, 2, 8)).astype(np.int32)
    full, start = np.ones((5, 2, 8), bool), np.zeros((5, 2), bool)
    start[3, 1] = starts
    return lanes.Batch(
        tokens=tokens, targets=tokens, valid=full, scored=full.astype(np.uint8),
        start=start, num_bytes=np.ones((5, 2), np.float32),
    )  # fmt: skip


def gradients(config):
    """Loss, gradients and the memory after one sequence in every lane."""
    made, train = Experiment(config, None, one_device()), config.train
    source = lanes.batches(
        made.corpus('train'), lanes=range(2), num_lanes=2, segment_length=8,
        segments_per_batch=5, seed=0, shuffle=True, num_epochs=None, cursor=None,
    )  # fmt: skip
    read, _ = next(source)
    assert not read.scored[:-1].any() and read.scored[-1].any()
    state = jax.jit(made.make_state)()

    def loss(params):
        key = jax.random.key(0)
        return train_step.read_batch(made.model, params, state.memory, read, key, train)

    (objective, (memory, metrics, _)), found = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        state.params
    )
    return objective, metrics['accuracy'], found, memory


@pytest.mark.slow
@pytest.mark.parametrize('memory', ['transformer_xl', 'infinity_former'])
def test_segments_without_answers_need_no_gradient(memory):
    """These memories pass no gradient from segment to segment, and only the last one is scored."""
    every, last = (gradients(small(memory, gradient_segments=count)) for count in (0, 1))
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(last[2])) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), every, last)


@pytest.mark.slow
def test_the_other_segments_have_none():
    """The KL term is of all segments, and differs if only the last one's counts."""
    every, last = (small('infinity_former', gradient_segments=count) for count in (0, 1))
    for config in (every, last):
        config.train.loss_weights.kl = 1.0
    every, last = (
        gradients(config)[2]['block_0']['attention']['memory']['sigma_bias']
        for config in (every, last)
    )
    assert np.abs(every - last).max() > 0.1 * np.abs(every).max()


def test_the_number_of_segments_with_a_gradient_is_checked():
    for count, sound in ((0, True), (5, True), (6, False), (-1, False)):
        problems = checks.find_problems(small('transformer_xl', gradient_segments=count), 1)
        assert any('gradient_segments' in problem for problem in problems) != sound


@pytest.mark.parametrize('memory', ['delta', pytest.param('test_time', marks=pytest.mark.slow)])
def test_packed_documents_are_scored_as_those_that_are_apart(memory):
    """Documents of 3 to 13 tokens: the same loss and gradient, with fewer segments."""
    model, params = toys.toy(memory, 1)
    texts = np.random.default_rng(0).integers(1, toys.VOCAB, (6, 20))
    lengths = (3, 11, 13, 5, 3, 7)

    class Texts:
        tokenizer = Bytes()

        def __len__(self):
            return len(lengths)

        def __getitem__(self, number):
            return TokenizedDocument(texts[number, : lengths[number]], lengths[number])

        def lengths(self):
            return np.array(lengths)

    memory = model.apply({'params': params}, 2, method='initial_state')
    key, own = jax.random.key(0), sorting.get_config('tiny').train

    @jax.jit
    @jax.value_and_grad
    def objective(params, read):
        return train_step.read_batch(model, params, memory, read, key, own)[0]

    def score(packed):
        read, _ = next(
            iter(
                lanes.LaneDataset(Texts(), range(2), 2, toys.LENGTH, 12, 0, False, 1, None, packed)
            )
        )
        read = read.replace(tokens=np.where(read.tokens < toys.VOCAB, read.tokens, 0))
        return read.valid.any(axis=(1, 2)).sum(), objective(params, read)

    (apart, of_apart), (together, of_packed) = score(packed=False), score(packed=True)
    assert together < apart
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), of_apart, of_packed
    )


def test_packing_is_for_models_that_reset_their_memories_inside_of_a_segment():
    assert not checks.find_problems(small('gated_delta_net', packed=True), 1)
    (problem,) = checks.find_problems(small('transformer_xl', packed=True), 1)
    assert 'packed = True: transformer_xl in config.model cannot begin' in problem
    positions = small('gated_delta_net', packed=True)
    positions.model.position = 'sinusoidal'
    (problem,) = checks.find_problems(positions, 1)
    assert "position = 'sinusoidal' counts from the begin of a segment" in problem


def test_z_loss_is_the_mean_square_of_the_denominators_logarithm():
    """Of scored tokens alone, nats^2 per token."""
    model, params = toys.toy('transformer_xl')
    segments = toys.random_segments()
    scored = np.asarray(segments.valid).astype(np.uint8)
    scored[0, 0, :2] = 0
    read = lanes.Batch(
        tokens=segments.tokens, targets=segments.tokens, valid=segments.valid, scored=scored,
        start=segments.start, num_bytes=np.ones(scored.shape[:2], np.float32),
    )  # fmt: skip
    settings = sorting.get_config('tiny').train

    @jax.jit
    def objective(weight):
        own = settings.copy_and_resolve_references()
        with own.ignore_type():
            own.z_loss = weight
        memory = model.apply({'params': params}, toys.BATCH, method='initial_state')
        key = jax.random.key(0)
        return train_step.read_batch(model, params, memory, read, key, own)[0]

    logits, _ = toys.run(model, params, segments)
    log_z = np.log(np.exp(np.asarray(logits, np.float64)).sum(axis=-1))
    wanted = np.square(log_z)[scored > 0].mean()
    assert wanted > 1
    np.testing.assert_allclose(objective(0.5) - objective(0.0), 0.5 * wanted, rtol=1e-4)


def readable(memory):
    """The rows of a ring that its count covers, zeros elsewhere."""
    rows = memory[0].attention.rows
    covered = np.arange(rows.rows_keys.shape[2]) < np.asarray(rows.count)[:, None]
    return [
        np.where(covered[:, None, :, None], part, 0) for part in (rows.rows_keys, rows.rows_values)
    ]


@pytest.fixture(scope='module')
def large_memory():
    """An experiment whose steps write 40 rows into a ring of 90, and its compiled step."""
    config = small('memorizing')
    config.model.memorizing.update(memory_size=90, block_size=90, top_k=2, memory_length=8)
    made = Experiment(config, None, one_device())
    return made, lower_step(made).compile()


def test_a_step_copies_no_large_memory(large_memory):
    """Its rows are kept, read, written and put back where they are, in this order."""
    made, step = large_memory
    rows = made.abstract_state.memory[0].attention.rows.rows_keys
    shape = f'f32[{",".join(map(str, rows.shape))}]'
    operations = re.findall(rf'= {re.escape(shape)}\S* ([\w-]+)\(', step.as_text())
    assert 'dynamic-update-slice' in operations, (
        f'the test looks for rows of another shape, {shape}'
    )
    moved = [name for name in operations if name in ('copy', 'copy-start', 'select')]
    assert not moved, f'{moved} of all rows: is one read not known to be before the write? Say so.'


def test_a_bad_step_leaves_the_memory_as_it_was(large_memory):
    """Of a large memory only the rows that a step replaces are kept, and put back."""
    made, step = large_memory
    state = jax.jit(made.make_state, out_shardings=made.state_shardings)()
    cursor = jax.tree.map(jnp.copy, state.cursor)
    for _ in range(3):
        state, metrics = step(state, batch(0), cursor)
        given = jax.tree.map(jnp.copy, state)  # a step overwrites what it is given
        broken = jax.tree.map(lambda leaf: leaf * np.nan, state.params)
        after, metrics = step(given.replace(params=broken), batch(1, starts=True), cursor)
        assert not np.isfinite(metrics['grad_norm']) and int(after.skipped) == 1
        for before, now in zip(readable(state.memory), readable(after.memory), strict=True):
            np.testing.assert_array_equal(before, now)
        same = (memory[0].attention.recent for memory in (state.memory, after.memory))
        jax.tree.map(np.testing.assert_array_equal, *same)
    assert int(state.memory[0].attention.rows.count[0]) == 90 + 120 % 90


@pytest.mark.slow
@pytest.mark.parametrize('prng', ['rbg', 'threefry'])
def test_a_step_draws_with_the_generator_of_the_config(prng):
    """Every step has masks of its own; the key of the run, which is saved, is the same."""
    config = small('transformer_xl', prng=prng)
    config.model.dropout = 0.5
    made = Experiment(config, None, one_device())
    traced = jax.jit(train_step.make_train_step(made.model, made.optimizer, made.schedule, config))
    state, given = jax.jit(made.make_state)(), batch(0)
    program = str(traced.trace(state, given, state.cursor).jaxpr)
    assert ('random_bits[' in program) and ('rbg' in program) == (prng == 'rbg')
    losses = {
        float(traced(state.replace(step=jnp.asarray(at)), given, state.cursor)[1]['loss'])
        for at in (0, 1, 1, 2)
    }
    assert len(losses) == 3, 'three steps with masks of their own, and one of them twice'
    assert jax.random.key_impl(state.key) == jax.random.key_impl(jax.random.key(0))
    assert settings_of(config)['config']['train']['prng'] == prng, (
        'a resumed run says that it differs'
    )


def test_tpus_draw_only_what_is_theirs():
    """Without the option every chip drew the masks of all of them, of gigabytes."""
    assert generators.compiler_options('rbg', 'tpu')
    others = ('threefry', 'tpu'), ('rbg', 'gpu'), ('rbg', 'cpu')  # which do not know the option
    assert not any(generators.compiler_options(*other) for other in others)


def test_a_step_for_tpus_is_compiled_with_that_option(monkeypatch):
    """A CPU does not know it, and says so."""
    made = Experiment(small('local', prng='rbg'), None, one_device())
    lower_step(made).compile()
    monkeypatch.setattr(hardware, 'platform', lambda: 'tpu')
    with pytest.raises(Exception, match='xla_tpu_spmd_rng_bit_generator_unsafe'):
        lower_step(made).compile()


def test_an_unknown_generator_is_refused():
    problems = checks.find_problems(small('transformer_xl', prng='philox'), 1)
    assert any("prng = 'philox': allowed: threefry, rbg" in problem for problem in problems)


def test_a_step_is_lowered_for_its_mesh():
    """Otherwise a ring that is spread over devices is brought together on each of them."""
    config = small('memorizing')
    config.model.memorizing.update(memory_size=90, block_size=90, top_k=2, memory_length=8)
    mesh = sharding.make_mesh(dict(data=2), jax.devices()[:2])
    program = lower_step(Experiment(config, None, mesh)).as_text()
    assert 'manual_computation' in program, 'set the mesh where the step is lowered'


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32'])
def test_all_that_a_step_writes_must_be_finite(dtype):
    params = {'kernel': jnp.full((4, 4), 1e10), 'bias': jnp.zeros((3,))}
    memory = {'rows': jnp.full((5_000,), 60_000, dtype), 'count': jnp.ones((2,), jnp.int32)}
    key = jax.random.key(0)
    assert train_step.all_finite(params, {'mean': params}, memory, key)
    for value in (np.nan, np.inf, -np.inf):
        for place in ('kernel', 'bias'):
            broken = {**params, place: params[place].at[0].set(value)}
            assert not train_step.all_finite(broken, memory)
            assert not train_step.all_finite(params, {'mean': broken}, memory)
        rows = memory['rows'].at[7].set(value)
        assert not train_step.all_finite(params, {**memory, 'rows': rows})
    huge = {**params, 'bias': params['bias'] + 1e38}
    assert not train_step.all_finite(huge), 'the next step would overflow'


def test_a_step_that_destroys_parameters_is_not_taken():
    config = small('transformer_xl')
    config.optimizer.learning_rate = 1e38
    made = Experiment(config, None, one_device())
    step = jax.jit(train_step.make_train_step(made.model, made.optimizer, made.schedule, config))
    state = jax.jit(made.make_state)()
    after, metrics = step(state, batch(0), state.cursor)
    assert np.isfinite(metrics['loss']) and np.isfinite(metrics['grad_norm'])
    assert int(after.skipped) == int(metrics['skipped']) == 1 and int(after.step) == 1
    for part in ('params', 'optimizer', 'memory'):
        jax.tree.map(np.testing.assert_array_equal, getattr(state, part), getattr(after, part))


def loss_of(memory, policy):
    """The loss of `batch(0)` as a function, and an experiment that makes its arguments."""
    config = small(memory)
    config.model.update(remat=policy, dropout=0.1)
    made = Experiment(config, None, one_device())

    def loss(params, memory):
        key = jax.random.key(1)
        return train_step.read_batch(made.model, params, memory, batch(0), key, config.train)[0]

    return loss, made


def test_a_block_keeps_what_the_policy_says():
    """How many bytes that saves on a TPU: docs/training.md."""
    loss, made = loss_of('transformer_xl', 'nothing_saveable')
    state = jax.eval_shape(made.make_state)
    assert 'nothing_saveable' in str(jax.make_jaxpr(loss)(state.params, state.memory))


def test_the_average_of_parameters_follows_updates_alone():
    """The first updates count more; steps that only accumulate, or were skipped, do not count."""
    settings = base().optimizer
    settings.update(accumulate_steps=2, groups=(('frozen', 0.0, False),))
    params = {'free': jnp.ones((3, 2)), 'frozen': jnp.full((2,), 0.1)}
    chain = make_optimizer(settings, 100, params)
    state, average, wanted = chain.init(params), params, params
    for step in range(1, 7):
        gradients = jax.tree.map(lambda leaf, g=step: jnp.full_like(leaf, g), params)
        updates, new_state = chain.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        if step % 2 == 0:
            share = 1 - min(0.5, (1 + step / 2) / (10 + step / 2))
            wanted = jax.tree.map(lambda a, p, s=share: a + s * (p - a), wanted, params)
        average = train_step.average_over_updates(average, params, state, new_state, 0.5)
        state = new_state
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), average, wanted)
        # As after a step that was not finite: the optimizer is where it was.
        same = train_step.average_over_updates(average, params, state, state, 0.5)
        jax.tree.map(np.testing.assert_array_equal, same, average)
    assert np.abs(average['free'] - params['free']).max() > 1e-5
    np.testing.assert_array_equal(average['frozen'], params['frozen'])


@pytest.mark.slow
@pytest.mark.parametrize('memory', ['transformer_xl', 'memory_tokens'])
def test_blocks_that_keep_less_have_the_same_gradient(memory):
    """And draw the same dropout, where layers share parameters, and where extra tokens pass through."""
    products, found, state = [], [], None
    for policy in stack.REMAT:
        loss, made = loss_of(memory, policy)
        state = state or jax.jit(made.make_state)()
        lowered = jax.jit(jax.grad(loss)).lower(state.params, state.memory)
        products.append(lowered.as_text().count('dot_general'))
        found.append(lowered.compile()(state.params, state.memory))
    assert products == sorted(products) and products[0] < products[-1], products
    for gradient in found[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradient, found[0])


def test_a_policy_is_one_of_those_that_make_sense():
    config = small('memformer')
    config.model.remat = 'dots_saveable'
    (problem,) = checks.find_problems(config, 1)
    assert "'memformer' is read inside of blocks; use '', and config.train.remat = True" in problem
    config.model.remat = 'dots_savable'
    problem, _ = checks.find_problems(config, 1)
    assert 'config.model.remat' in problem and "did you mean 'dots_saveable'" in problem
    assert not {'remat', 'loss_blocks'} & {*model_of(config)}, 'a run may be resumed with others'


def test_what_computes_all_logits_refuses_parts_of_them():
    config = mem_transformer_wmt14.get_config('tiny')
    config.model.loss_blocks = 8
    (problem,) = checks.find_problems(config, 1)
    assert 'loss_blocks = 8: seq2seq models compute all logits at once' in problem


def test_a_loss_without_a_weight_is_told_where_memories_declare_it():
    train_step.require_weights(['slots'], ['slots', 'gates'])
    with pytest.raises(
        UsageError, match='no weight for gates, which Aux.losses .* LayerType.losses'
    ):
        train_step.require_weights(['slots', 'gates'], ['slots'])
