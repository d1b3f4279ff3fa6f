"""Absolute positions beyond a segment, what targets cost, and tied vectors on several devices."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from longmem_jax.devices.sharding import lanes_sharding, make_mesh, replicated
from longmem_jax.layers.embedding import Embedding, _as_taken
from longmem_jax.models.parameters import abstract_parameters, unbox
from tests.toys import LENGTH, parameters, with_config


@pytest.mark.parametrize('position', ['learned', 'sinusoidal'])
def test_positions_go_on_beyond_a_segment_up_to_the_table(position):
    model = with_config('local', layers=1, position=position, num_positions=3 * LENGTH)
    params = parameters(model, 1)
    tokens = jnp.zeros((1, 4 * LENGTH), jnp.int32)

    @jax.jit
    def encode(tokens, index):
        method = lambda module, *given: module.stack.embedding.encode(*given)  # noqa: E731
        return model.apply({'params': params}, tokens, index, method=method)

    whole = np.asarray(encode(tokens, jnp.asarray([0], jnp.int32))[0])
    assert len({row.tobytes() for row in whole}) == 3 * LENGTH
    np.testing.assert_array_equal(whole[3 * LENGTH :], whole[[3 * LENGTH - 1] * LENGTH])
    later = encode(tokens[:, :LENGTH], jnp.asarray([LENGTH + 1], jnp.int32))[0]
    np.testing.assert_array_equal(later, whole[LENGTH + 1 : 2 * LENGTH + 1])


def test_a_learned_table_is_a_segment_long_unless_it_has_its_own_length():
    for number, wanted in ((0, LENGTH), (3 * LENGTH, 3 * LENGTH)):
        model = with_config('local', layers=1, position='learned', num_positions=number)
        params = unbox(abstract_parameters(model))
        assert params['embedding']['places'].shape[0] == wanted


def plain_costs(logits, targets):
    """nll, log_z and whether the target is the first of the likeliest, from all logits."""
    log_z = jax.nn.logsumexp(logits, axis=-1)
    logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return log_z - logit, log_z, logits.argmax(axis=-1) == targets


@pytest.mark.parametrize(
    'dtype, close, width, tied, blocks',
    [
        ('float32', 1e-5, 16, True, 1),
        ('float32', 1e-5, 12, True, 7),  # the last part has fewer tokens
        ('bfloat16', 1e-2, 16, False, 5),
        ('float32', 1e-5, 16, False, 60),  # more than there are tokens
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ('float32', 1e-5, 16, False, 1),
                ('bfloat16', 1e-2, 16, True, 1),
                ('bfloat16', 1e-2, 12, True, 1),
            )
        ),
    ],
)
def test_targets_cost_what_all_logits_say(dtype, close, width, tied, blocks):
    """In bfloat16 their logits come from the table itself, and gradients are rounded once."""
    layer = Embedding(
        vocab_size=40, d_model=16, d_embed=width, cutoffs=(), div_val=1, tie_weights=tied,
        tie_projections=(True,), output_bias=True, scale=False, position='none', num_positions=1,
        std=1.0, scheme='normal', init_std=1.0, dtype=jnp.dtype(dtype), blocks=blocks,
    )  # fmt: skip
    tokens, targets = np.random.default_rng(0).integers(0, 40, (2, 3, 50)).astype(np.int32)
    start = jnp.zeros((3,), jnp.int32)

    def everything(module, tokens):
        hidden = module.encode(tokens, start)
        return hidden, module.nll(hidden, tokens)

    params = unbox(jax.jit(lambda: layer.init(jax.random.key(0), tokens, method=everything))())
    bias = jax.random.normal(jax.random.key(1), (40,))
    params['params']['out_bias_0'] = bias

    def costs(params, plain):
        hidden = 2 * layer.apply(params, tokens, start, method='encode')
        if not plain:
            scores = layer.apply(params, hidden, targets, method='nll')
            return scores.nll, scores.log_z, scores.right
        return plain_costs(layer.apply(params, hidden, method='logits'), targets)

    def loss(params, plain):
        nll, log_z, right = costs(params, plain)
        return nll.mean() + 0.1 * jnp.square(log_z).mean(), (nll, log_z, right)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    (found, parts), gradient = run(params, False)
    program = run.lower(params, False).as_text()
    assert ('tensor<3x50x40x' in program) == (blocks == 1), 'logits of all tokens exist at once'
    (wanted, plain), plain_gradient = run(params, True)
    assert 0 < plain[2].mean() < 1
    np.testing.assert_array_equal(parts[2], plain[2])
    for part, other in zip((found, *parts[:2]), (wanted, *plain[:2]), strict=True):
        np.testing.assert_allclose(part, other, rtol=1e-5, atol=1e-5)
    for part, other in zip(*map(jax.tree.leaves, (gradient, plain_gradient)), strict=True):
        assert part.dtype == other.dtype == jnp.float32
        np.testing.assert_allclose(part, other, atol=close * np.abs(other).max())
    nothing = jnp.zeros((1, 40, 16), dtype)
    params['params']['out_bias_0'] = 0 * bias
    equal = layer.apply(params, nothing, jnp.arange(40)[None], method='nll').right
    np.testing.assert_array_equal(equal[0], np.arange(40) == 0)


def test_second_derivatives_come_through_the_targets():
    logits, targets = jnp.asarray([[[1.0, 2.0, 3.0]]]), jnp.asarray([[1]])

    def square(logits):
        value = jax.lax.stop_gradient(logits[..., 1])
        return jnp.square(_as_taken(logits, targets, value)).sum()

    second = jax.grad(lambda logits: jax.grad(square)(logits).sum())(logits)
    np.testing.assert_array_equal(second, [[[0.0, 2.0, 0.0]]])


def tied_loss(params, tokens, cutoffs=(), compiled=True, blocks=1):
    """Costs of tokens by the vectors that embedded them, of a layer with a table of 48 x 16."""
    layer = Embedding(
        vocab_size=48, d_model=16, d_embed=16, cutoffs=cutoffs, div_val=1, tie_weights=True,
        tie_projections=(False,) * 3, output_bias=True, scale=False, position='none', num_positions=1,
        std=1.0, scheme='normal', init_std=1.0, dtype=jnp.dtype('float32'), blocks=blocks,
    )  # fmt: skip

    def cost(module, tokens):
        hidden = module.encode(tokens, jnp.zeros((len(tokens),), jnp.int32))
        return module.nll(jnp.tanh(hidden), tokens).nll.mean()

    if params is None:
        init = functools.partial(layer.init, method=cost)
        return unbox((jax.jit(init) if compiled else init)(jax.random.key(0), tokens))['params']
    return layer.apply({'params': params}, tokens, method=cost)


MESHES = dict(data=4), dict(data=2, fsdp=2), dict(data=2, tensor=2)
LANES = {
    'plain': (8, (), 1), 'undivided': (6, (), 1), 'clusters': (8, (12, 30), 1), 'blocks': (8, (), 3),
}  # fmt: skip
QUICK = (
    (0, 'plain'),
    (1, 'undivided'),
    (2, 'clusters'),
    (2, 'blocks'),
)  # every mesh and every kind of lanes once


@pytest.mark.parametrize(
    'sizes, lanes, cutoffs, blocks',
    [
        pytest.param(
            sizes,
            *LANES[kind],
            id=f'sizes{number}-{kind}',
            marks=() if (number, kind) in QUICK else pytest.mark.slow,
        )
        for number, sizes in enumerate(MESHES)
        for kind in LANES
    ],
)
def test_the_gradient_of_tied_vectors_is_exchanged_once(sizes, lanes, cutoffs, blocks):
    """Their uses are added up on every device; lanes that do not divide have the same numbers."""
    mesh = make_mesh(sizes, jax.devices()[:4])
    tokens = np.random.default_rng(0).integers(0, 48, (lanes, 10)).astype(np.int32)
    params = tied_loss(None, tokens, cutoffs)
    slope = jax.value_and_grad(functools.partial(tied_loss, cutoffs=cutoffs, blocks=blocks))
    divide = lanes % (sizes['data'] * sizes.get('fsdp', 1)) == 0
    by_vocab = jax.tree.map(lambda _: NamedSharding(mesh, P('tensor')), params)
    with jax.set_mesh(mesh):
        given = by_vocab, lanes_sharding(mesh) if divide else replicated(mesh)
        step = jax.jit(slope, in_shardings=given, out_shardings=(replicated(mesh), by_vocab))
        program = step.lower(params, tokens).compile()
        found = program(*jax.device_put((params, tokens), given))
    slope = jax.value_and_grad(functools.partial(tied_loss, cutoffs=cutoffs))
    chex.assert_trees_all_close(found, jax.jit(slope)(params, tokens), atol=1e-6)
    exchanged = sum(
        int(rows)
        for line in program.as_text().splitlines()
        if ' all-reduce(' in line or ' all-reduce-start(' in line
        for rows in re.findall(r'f32\[(\d+),16\]', line.partition(' all-reduce')[0])
    )
    vectors = (48 + len(cutoffs)) // sizes.get('tensor', 1)
    assert exchanged == divide * vectors, (
        f'{exchanged} vectors of {vectors} are exchanged: see kernels/cpu/device_copies.py'
    )


def test_tied_vectors_need_no_compiled_program():
    """A model can be initialised, applied and differentiated step by step on several devices."""
    tokens = np.arange(16, dtype=np.int32).reshape(4, 4)
    params = tied_loss(None, tokens)
    wanted = jax.jit(jax.value_and_grad(tied_loss))(params, tokens)
    with jax.set_mesh(make_mesh(dict(data=2, tensor=2), jax.devices()[:4])):
        tied_loss(None, tokens, compiled=False)
        found = jax.value_and_grad(tied_loss)(params, tokens)
    chex.assert_trees_all_close(found, wanted, atol=1e-6)
