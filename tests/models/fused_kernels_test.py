"""`config.model.kernels = 'fused'`: every memory that has it learns the same as with plain kernels."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.config.recipes import section
from longmem_jax.contract import KERNELS
from longmem_jax.devices.sharding import lanes_sharding, make_mesh, parameter_shardings
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.stream import read_open_segment
from longmem_jax.kernels import fused_attention
from longmem_jax.kernels.tpu import fused_search
from longmem_jax.memory.registry import ATTENTION
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import read_segments
from longmem_jax.standalone import make_layer
from longmem_jax.training.identity import model_of
from tests.kernels.interpreted import interpret
from tests.toys import OWN_CODE, VOCAB, apply, parameters, random_segments, with_config

FAST = ('transformer_xl',)
NAMES = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for layer, entry in sorted(OWN_CODE.items())
    if entry.layer.fused is not None
    for variant in ('', *entry.variants)
    if not entry.layer.fused(entry.small(variant))
    for name in (f'{layer}:{variant}' if variant else layer,)
]


@pytest.fixture(params=['tpu', pytest.param('cuda', marks=pytest.mark.slow)])
def small_blocks(monkeypatch, request):
    """The memory of the toys has more than one block; the interpreter runs the kernels."""
    if request.param == 'cuda' and 'memorizing' in request.node.name:
        pytest.skip('the search has no kernel for GPUs')
    interpret(monkeypatch, fused_attention, request.param, BLOCK_QUERIES=8, BLOCK_KEYS=8)
    interpret(monkeypatch, fused_search, request.param, BLOCK_QUERIES=8, BLOCK_ROWS=8)


def uneven(params):
    """Parameters with spans that differ between tokens, and between heads."""
    own = params['block_0']['attention']
    if 'span_kernel' in own:
        own['span_kernel'] = jax.random.normal(jax.random.key(0), own['span_kernel'].shape)
    if 'span_share' in own:
        own['span_share'] = jnp.linspace(0.11, 0.63, own['span_share'].size)
    return params


def segments_with_oddities(batch=2):
    """Segments of two documents in lane 0, and with padding in lane 1.

    No token comes twice in a lane, so that no two keys have the same score: the fused search reads all
    rows with the score of the k-th one.
    """
    segments = random_segments(batch=batch)
    lanes = [np.random.default_rng(lane).permutation(VOCAB) for lane in range(batch)]
    number, _, length = segments.tokens.shape
    tokens = np.stack(lanes)[:, : number * length].reshape(batch, number, length)
    segments = segments.replace(tokens=jnp.asarray(tokens.swapaxes(0, 1), jnp.int32))
    valid = np.ones(segments.valid.shape, bool)
    valid[1, 1, 3:] = False
    start = np.array(segments.start)
    start[2, 0] = True
    return segments.replace(valid=jnp.asarray(valid), start=jnp.asarray(start))


@pytest.mark.parametrize('name', NAMES)
def test_segments_are_opened_alike(small_blocks, name):
    """The first tokens of a segment at once, by the kernel and without it."""
    plain, fused = (with_config(name, layers=1, kernels=kernels) for kernels in KERNELS)
    params, segments = uneven(parameters(plain, 1)), segments_with_oddities()
    opened = []
    for model in (plain, fused):
        state = fresh_state(model, params, 2)
        for number in range(2):
            segment = jax.tree.map(lambda leaf, n=number: leaf[n], segments)
            state = apply(plain, params, segment, state)[1]
        counts = np.array([3, 2], np.int32)
        opened.append(read_open_segment(model, params, state, segments.tokens[2, :, :3], counts)[0])
    chex.assert_trees_all_close(*opened, atol=2e-5, rtol=2e-5)


def learned(model, params, segments):
    """Sum of a loss and the auxiliary losses over segments, with its gradient."""

    def value(params, segments):
        def read(state, segment, key):
            logits, state, aux = model.apply({'params': params}, segment, state, train=False)
            by_token = jnp.square(jax.nn.log_softmax(logits)).mean(axis=-1)
            total = (by_token * segment.valid).mean() + 10 * sum(aux.losses.values())
            return state, (total, jnp.where(segment.valid[..., None], logits, 0))

        state = model.apply({'params': params}, segments.start.shape[1], method='initial_state')
        totals, logits = read_segments(read, state, segments, jax.random.key(0))[1]
        return totals.sum(), logits

    return jax.jit(jax.value_and_grad(value, has_aux=True))(params, segments)


@pytest.mark.parametrize('name', NAMES)
def test_learns_the_same(name, small_blocks):
    """Logits and gradients through several segments, with resets, padding and empty memories."""
    plain = with_config(name, layers=1)
    params = uneven(parameters(plain, 1))
    segments = segments_with_oddities()
    fused = with_config(name, layers=1, kernels='fused')
    expected, found = (learned(model, params, segments) for model in (plain, fused))
    assert any(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(expected[1]))
    chex.assert_trees_all_close(expected, found, atol=2e-5, rtol=2e-4)


def test_other_searches_stay_as_they_are():
    """Only the exact search of rows of a float type is in the kernel."""
    segment = jax.tree.map(lambda leaf: leaf[0], random_segments())

    def program(**fields):
        own = dict(ATTENTION['memorizing'].small(), **fields)
        model = with_config('memorizing', layers=1, kernels='fused', memorizing=own)
        params = jax.eval_shape(lambda: unbox(initial_parameters(model, jax.random.key(1))))

        def read(params):
            state = fresh_state(model, params, 2)
            return model.apply({'params': params}, segment, state, train=False)[0]

        return str(jax.make_jaxpr(read)(params))

    assert 'fused_search_forward' in program()
    for fields in (dict(search='approximate'), dict(unwritten='zeros'), dict(cache_dtype='int8')):
        found = program(**fields)
        assert 'fused_attention_forward' in found and 'fused_search' not in found, fields


@pytest.mark.slow
def test_every_device_chooses_its_sizes(small_blocks):
    """A kernel inside of a choice of sizes, which every device makes for its own lanes."""
    model = with_config('expire_span', layers=1, kernels='fused')
    params, segments = uneven(parameters(model, 1)), random_segments(batch=4)
    (wanted, _), expected = learned(model, params, segments)
    mesh = make_mesh(dict(data=4, tensor=2))
    boxed = jax.eval_shape(lambda: initial_parameters(model, jax.random.key(0)))
    placed = jax.device_put(params, parameter_shardings(mesh, boxed))
    spread = jax.device_put(segments, lanes_sharding(mesh, 1))
    with jax.set_mesh(mesh):
        (found, _), sharded = learned(model, placed, spread)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    chex.assert_trees_all_close(expected, jax.device_get(sharded), atol=2e-5, rtol=2e-4)


def a_config(**model):
    config = base()
    config.model.kernels = 'fused'
    config.model.update(model)
    return config


def test_problems_say_who_has_it():
    assert checks.find_problems(a_config(), 1) == []
    able = ', '.join(
        sorted(name for name, entry in ATTENTION.items() if entry.layer.fused is not None)
    )
    unable = a_config(attention=('memsizer',) * 2, memsizer=section('memsizer'))
    problem, *_ = checks.find_problems(unable, 1)
    assert problem == (
        f"config.model.kernels = 'fused': 'memsizer' has no fused kernel, those that have are {able}; "
        "use 'plain'"
    )
    problem, *_ = checks.find_problems(
        a_config(transformer_xl=section('transformer_xl', position='alibi_beyond')), 1
    )
    assert "transformer_xl.position = 'alibi_beyond'" in problem
    many = section('memorizing', memory_size=512, block_size=512, top_k=257)
    problem, *_ = checks.find_problems(a_config(attention=('memorizing',) * 2, memorizing=many), 1)
    assert 'memorizing.top_k = 257 is more than 256' in problem
    problem, *_ = checks.find_problems(a_config(dtype='float64'), 1)
    assert 'has no float64' in problem
    problem, *_ = checks.find_problems(a_config(kernels='fussed'), 1)
    assert "kernels = 'fussed'" in problem and 'allowed are plain, fused' in problem
    sizes = dict(d_model=8, num_heads=2, segment_length=4)
    with pytest.raises(UsageError, match="'memsizer' has no fused kernel"):
        make_layer('memsizer', kernels='fused', **sizes)


def test_other_devices_are_refused_before_anything_compiles():
    experiment = Experiment(a_config(), None, make_mesh(dict(data=8)))
    for name in ('model', 'evaluation_model'):
        with pytest.raises(
            UsageError, match='is for TPUs and NVIDIA GPUs.* cpu; set --config.model.kernels=plain'
        ):
            getattr(experiment, name)


REFUSED = (
    r"kernels = 'fused': is for TPUs and NVIDIA GPUs, and .* the platform cpu; set kernels='plain'"
)


@pytest.mark.parametrize('compiled', [False, True])
def test_a_layer_is_refused_on_other_devices(compiled):
    """Where a program is lowered: a layer cannot know sooner what it will run on."""
    layer = make_layer('local', d_model=4, num_heads=1, segment_length=2, kernels='fused')
    arguments = jax.random.key(0), jnp.zeros((1, 2, 4)), layer.start(1)
    abstract = jax.eval_shape(layer.init, *arguments)  # shapes need no device
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), abstract)
    apply = jax.jit(layer.apply) if compiled else layer.apply
    with pytest.raises(UsageError, match=REFUSED):
        apply(params, *arguments[1:])
    with pytest.raises(UsageError, match=REFUSED):
        jax.grad(lambda params: apply(params, *arguments[1:])[0].sum())(params)


def test_a_model_is_refused_on_other_devices():
    model = with_config('transformer_xl', layers=1, kernels='fused')
    with pytest.raises(UsageError, match=REFUSED):
        learned(model, parameters(model, 1), random_segments(batch=2))


def test_a_checkpoint_can_be_read_with_other_kernels():
    assert model_of(a_config()) == model_of(a_config(kernels='plain'))
