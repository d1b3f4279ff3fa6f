"""RWKV-7's channel mixing is its formula, token by token, also in its gradients and its state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import longmem_jax
from longmem_jax.memory.rwkv_channel import ENTRY, drawn_mix
from longmem_jax.segment import Segment
from tests.toys import BATCH as ROWS
from tests.toys import SEGMENTS, moved, random_segments, run

BATCH, WIDTH, HIDDEN = 3, 6, 10
LENGTHS = (5, 1, 3, 4, 2)


def parameters(random):
    """mu, K and V as the layer has them."""
    shapes = dict(mix=(WIDTH,), up=(WIDTH, HIDDEN), down=(HIDDEN, WIDTH))
    return {name: random.normal(size=shape) for name, shape in shapes.items()}


def as_ours(params):
    """The same in the layout of the public layer."""
    kernels = {name: {'kernel': params[name]} for name in ('up', 'down')}
    return {'params': {'inner': {'mix': params['mix']} | kernels}}


def formula(params, x, before, valid, start):
    """One lane, token by token; x [n, width], before [width]. Outputs, the last input, and a tape."""
    y, tape, last = np.zeros_like(x), [], None
    for t in range(len(x)):
        if start[t]:
            before, last = np.zeros_like(before), None
        if not valid[t]:
            continue
        shifted = x[t] + params['mix'] * (before - x[t])
        hidden = np.maximum(shifted @ params['up'], 0)
        y[t] = hidden**2 @ params['down']
        tape.append((t, last, before, shifted, hidden))
        before, last = x[t], t
    return y, before, (tape, last)


def slopes(params, x, tape, of_y, of_state):
    """Gradients by the parameters, x and `before`, written out; `of_state` is that of the last input."""
    (tape, last), of_before = tape, np.zeros(WIDTH)
    of_params, of_x = {name: np.zeros_like(leaf) for name, leaf in params.items()}, np.zeros_like(x)
    if last is not None:
        of_x[last] += of_state
    for t, earlier, before, shifted, hidden in reversed(tape):
        of_hidden = 2 * hidden * (params['down'] @ of_y[t])
        of_params['down'] += np.outer(hidden**2, of_y[t])
        of_params['up'] += np.outer(shifted, of_hidden)
        of_shifted = params['up'] @ of_hidden
        of_params['mix'] += of_shifted * (before - x[t])
        of_x[t] += (1 - params['mix']) * of_shifted
        if earlier is not None:
            of_x[earlier] += params['mix'] * of_shifted
        elif before.any():  # it is the state, not the begin of a document
            of_before += params['mix'] * of_shifted
    return of_params, of_x, of_before


def texts(random, kind):
    """Segments of several lengths: x, valid and start of each."""
    found = []
    for number, length in enumerate(LENGTHS):
        shape = (BATCH, length)
        valid, start = np.ones(shape, bool), np.zeros(shape, bool)
        if kind != 'full':
            valid = random.random(shape) < 0.7
            valid[number % BATCH] = False  # a row without a token
        if kind == 'starts':
            start = random.random(shape) < 0.3
            start[number % BATCH] = False
        found.append((random.normal(size=(*shape, WIDTH)), valid, start))
    return found


@pytest.mark.parametrize('kind', ['full', 'padded', 'starts'])
def test_is_its_formula_token_by_token(kind):
    random = np.random.default_rng(len(kind))
    params, segments = parameters(random), texts(random, kind)
    of_y = [random.normal(size=x.shape) for x, _, _ in segments]
    first, of_state = (random.normal(size=(BATCH, WIDTH)) for _ in range(2))

    with jax.enable_x64(True):
        layer = longmem_jax.ChannelMixing(
            d_model=WIDTH, num_heads=1, segment_length=5, d_feed_forward=HIDDEN, dtype='float64'
        )

        def loss(params, xs, first):
            state, total, found = layer.start(BATCH).replace(recent=first[:, None]), 0.0, []
            for x, (_, valid, start), weights in zip(xs, segments, of_y, strict=True):
                y, state, _ = layer.apply(as_ours(params), x, state, valid=valid, start=start)
                total += (y * weights).sum()
                found.append(y)
            return total + (state.recent[:, 0] * of_state).sum(), (found, state)

        read = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))
        given = params, [x for x, _, _ in segments], first
        (of_params, of_x, of_first), (found, state) = jax.device_get(read(*given))

    total = {name: np.zeros_like(leaf) for name, leaf in params.items()}
    for row in range(BATCH):
        # One long text: where segments end does not matter.
        x, valid, start, weights = (
            np.concatenate([segment[row] for segment in parts])
            for parts in (*zip(*segments, strict=True), of_y)
        )
        y, last, tape = formula(params, x, first[row], valid, start)
        ours = np.concatenate([part[row] for part in found])
        np.testing.assert_allclose(ours, y, atol=1e-10)
        np.testing.assert_allclose(state.recent[row, 0], last, atol=1e-12)
        by_params, by_x, by_first = slopes(params, x, tape, weights, of_state[row])
        ours = np.concatenate([part[row] for part in of_x])
        np.testing.assert_allclose(ours, by_x, atol=1e-10)
        np.testing.assert_allclose(of_first[row], by_first, atol=1e-10)
        total = {name: leaf + by_params[name] for name, leaf in total.items()}
    for name, leaf in total.items():
        np.testing.assert_allclose(of_params[name], leaf, atol=1e-9, err_msg=name)


def test_keeps_the_normed_input():
    """Of the release: the vector after the norm is the state, not the residual stream."""
    settings = longmem_jax.ChannelMixing(d_model=WIDTH, num_heads=1, segment_length=5).settings
    layer = ENTRY.layer.module(settings=settings, normalize=jnp.tanh, shared=None)
    x = jax.random.normal(jax.random.key(0), (BATCH, 5, WIDTH))
    count = np.asarray([5, 2, 0])
    segment = Segment(np.zeros((BATCH, 5), np.int32), np.arange(5) < count[:, None], None)
    segment = segment.replace(start=np.zeros((BATCH,), bool))

    def read(layer, x):
        state = layer.initial_state(BATCH)
        return layer(x, state, segment, train=False)[1].recent[:, 0]

    found = layer.init_with_output(jax.random.key(1), x, method=read)[0]
    wanted = np.stack([np.tanh(x[0, 4]), np.tanh(x[1, 1]), np.zeros(WIDTH)])
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_new_layer_begins_as_the_release():
    """From the token before alone, in the first channel, to nearly the token itself."""
    mix = drawn_mix(jax.random.key(0), (64,))
    assert mix[0] == 1 and (np.diff(mix) < 0).all() and 0 < mix[-1] < 1e-3
    assert mix[32] == pytest.approx(1 - 0.5 ** (1 / 16), rel=1e-5)
    params = moved('rwkv_channel')[1]['block_0']['feed_forward']
    assert {*params} == {'mix', 'up', 'down'} and {*params['up']} == {*params['down']} == {'kernel'}


def test_one_vector_per_block_is_carried():
    """4 d_model bytes in float32, beside the state of the attention layer."""
    model, params = moved('rwkv_channel')
    _, (block, *_) = jax.device_get(run(model, params, random_segments()))
    assert block.feed_forward.recent.shape == (SEGMENTS, ROWS, 1, 16)
    assert np.abs(np.diff(block.feed_forward.recent, axis=0)).max() > 0.1
