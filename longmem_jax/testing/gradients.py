"""Promises of gradients: right, finite, the same in a scan and in a loop, and stopped where asked."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.generation.reader import fresh_state
from longmem_jax.segment import Aux, Segment
from longmem_jax.testing import toys
from longmem_jax.testing.assertions import (
    assert_close,
    assert_differs,
    assert_equal,
    assert_finite,
    equations,
)
from longmem_jax.testing.programs import (
    EVERY,
    ROWS,
    Entry,
    Reading,
    at,
    loss_of,
    reading,
    segments_of,
    zeros,
)
from longmem_jax.testing.segments import split, started
from longmem_jax.testing.toys import BATCH, SEGMENTS


def assert_gradients_close(
    found: Any, wanted: Any, broken: str, fix: str, by: float = 1e-5
) -> None:
    """Equal to `by` of the largest value."""
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(wanted))
    assert_close(found, wanted, broken, fix, atol=by * largest)


class Single:
    """One segment in float64 without a scan, and its gradients by parameters and by the state before.

    For the rows `twice` repeats.
    """

    def __init__(self, entry: Entry):
        self.model = toys.with_config(entry.name, layers=1, dtype='float64')
        self.params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), entry.params)
        self.state = zeros(lambda: fresh_state(self.model, self.params, BATCH))

        @jax.jit
        def read(params: Any, state: Any, segment: Segment, cotangents: list[Any]) -> Any:
            leaves, structure = jax.tree.flatten(state)
            is_float = [np.issubdtype(leaf.dtype, np.floating) for leaf in leaves]

            def value(params: Any, floats: Any) -> Any:
                floats = iter(floats)
                given = [
                    next(floats) if f else leaf for f, leaf in zip(is_float, leaves, strict=True)
                ]
                logits, new, aux = self.model.apply(
                    {'params': params}, segment, jax.tree.unflatten(structure, given), train=False
                )
                after = [leaf for leaf, f in zip(jax.tree.leaves(new), is_float, strict=True) if f]
                loss = loss_of(logits, segment.valid)
                pulled = sum(jnp.vdot(c, leaf) for c, leaf in zip(cotangents, after, strict=True))
                return loss + pulled, (loss, logits, new, aux)

            floats = [leaf for leaf, f in zip(leaves, is_float, strict=True) if f]
            return jax.value_and_grad(value, argnums=(0, 1), has_aux=True)(params, floats)

        self._read = read

    def narrows(self, state: Any, segment: Segment) -> bool:
        """Whether the layer makes float32 of float64 where the result depends on it."""

        def logits(params: Any) -> Any:
            return self.model.apply({'params': params}, segment, state, train=False)[0]

        casts = [
            each
            for each in equations(jax.make_jaxpr(logits)(self.params).jaxpr)
            if each.primitive.name == 'convert_element_type'
        ]
        return any(
            each.invars[0].aval.dtype == jnp.float64 and each.params['new_dtype'] == jnp.float32
            for each in casts
        )

    def read(
        self, state: Any, segment: Segment, cotangents: Any = None, params: Any = None
    ) -> tuple[float, Any, Any, Aux, tuple[Any, Any]]:
        """(loss, logits, the state after it, `Aux`, gradients by parameters and by the state's floats).

        Args:
          state: before the segment.
          segment: of `BATCH` rows.
          cotangents: of the floats of the state after it; None = zeros.
          params: None = the toy's.
        """
        if cotangents is None:
            leaves = jax.tree.leaves(state)
            floats = [leaf for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)]
            cotangents = [np.zeros(leaf.shape, leaf.dtype) for leaf in floats]
        params = self.params if params is None else params
        (_, found), gradients = jax.device_get(self._read(params, state, segment, cotangents))
        return *found, gradients


def twice(segments: Segment) -> Segment:
    """`ROWS` rows: the first `BATCH` two times."""
    rows = np.arange(ROWS) % BATCH
    return jax.tree.map(lambda leaf: leaf[:, rows], segments)


# Part of the largest gradient that float32 is wrong by, where it is more than usual: a regression.
ROUGH = {'infinity_former': 2e-3}


def gradients(entry: Entry) -> None:
    """Directional derivatives against float64 differences, and a scan against a loop.

    The function differentiated is the loss of the third segment as a function of the parameters,
    with the memories before it held fixed, so that what a paper detaches is detached on both sides.
    The scan recomputes segments in the backward pass, which is memory replay back-propagation
    (Memformer); the loop is plain, and its chain rule written out.
    """
    scan, found = entry.read(twice(segments_of())), []
    with jax.enable_x64(True):
        single = Single(entry)
        segments = jax.tree.map(lambda leaf: leaf[:, :BATCH], segments_of())
        states = [single.state]
        for number in range(SEGMENTS):
            found.append(single.read(states[-1], at(segments, number)))
            states.append(found[-1][2])
        _right(single, states[2], at(segments, 2))
        by_params, by_state = found[-1][-1]
        for number in reversed(range(SEGMENTS - 1)):
            more, by_state = single.read(states[number], at(segments, number), by_state)[-1]
            by_params = jax.tree.map(np.add, by_params, more)
    losses, logits, _, aux, _ = zip(*found, strict=True)
    _twice_as_many(scan.aux, jax.tree.map(lambda *leaves: np.stack(leaves), *aux))
    if ':' in entry.name:  # rounding decides what some variants choose, in float32 otherwise
        return
    fix = (
        'The state must be all that goes from segment to segment: no attribute set in `__call__`, '
        'no mutable collection, no random numbers in evaluation. The loop is float64 and the scan '
        'float32: softmax, sums over tokens and normalizers want float32.'
    )
    broken, scale = 'a loop and a scan give other', float(np.abs(scan.logits).max())
    axes, plain = ('segment', 'row', 'position'), scan.logits[:, :BATCH]
    assert_close(plain, np.stack(logits), f'{broken} logits', fix, axes=axes, atol=1e-5 * scale)
    value = sum(losses) * ROWS / BATCH
    assert_close(scan.loss, value, f'{broken} losses', fix, atol=0.0, rtol=1e-4)
    total = jax.tree.map(lambda leaf: leaf * (ROWS / BATCH), by_params)
    by = ROUGH.get(entry.name, 1e-4)
    assert_gradients_close(scan.gradient, total, f'{broken} gradients', fix, by)


MEANS = 'Average over the rows: hosts and devices have a part of the batch each, of equal size.'


def means(aux: Aux, kind: str) -> dict[str, Any]:
    """Losses or metrics without the largest of all rows, which is no mean over them."""
    found = getattr(aux, kind).items()
    return {name: leaf for name, leaf in found if not name.endswith('_max')}


def _twice_as_many(found: Aux, wanted: Aux) -> None:
    """A sum over rows is no mean of them: it is twice as large for all rows two times."""
    for kind in ('losses', 'metrics'):
        some, other = means(found, kind), means(wanted, kind)
        broken = f'`Aux.{kind}` of twice as many rows differ'
        assert_close(some, other, broken, MEANS, axes=('segment',), atol=1e-6, rtol=0.05)


def _right(single: Single, state: Any, segment: Segment) -> None:
    """The gradient of a segment is finite, and the slope of its loss."""
    gradient = single.read(state, segment)[-1][0]
    random = np.random.default_rng(0)
    direction = jax.tree.map(lambda leaf: random.normal(size=leaf.shape), single.params)
    step = 1e-6  # so small that hardly any ReLU changes sides
    high, low = (
        single.read(
            state,
            segment,
            params=jax.tree.map(lambda p, d, s=sign: p + s * step * d, single.params, direction),
        )[0]
        for sign in (1, -1)
    )
    slope = sum(
        (g * d).sum()
        for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    )
    fix = 'Guard the argument of a division, root or logarithm, not its result.'
    assert_finite(gradient, 'gradients are not finite', fix)
    try:
        assert_close(
            slope,
            (high - low) / (2 * step),
            'the gradient is not the slope of the loss',
            'A `stop_gradient` or `custom_vjp` on the way from parameters to output of one segment '
            'is wrong; only what goes into the new state may be detached.',
            atol=0.0,
            rtol=1e-5,
        )
    except AssertionError as error:
        if not single.narrows(state, segment):
            raise
        raise AssertionError(
            f'{error}\nBut first: the layer casts numbers to float32 where activations are float64, so '
            'that the loss is too rough for this comparison. Use '
            '`jnp.promote_types(self.settings.dtype, jnp.float32)` in place of `jnp.float32`, also as '
            'the `dtype` of modules.'
        ) from None


def gradients_with_starts(entry: Entry) -> None:
    """Gradients are finite, and pieces without tokens add nothing to them, skipped or read."""
    segments = started(segments_of(2), (2, 0, 2, 0))
    pieces = jax.device_get(split(segments, 2))  # one piece is used by some rows, one by none
    skipped, read = (
        entry.read(pieces.segments, used=used).gradient for used in (pieces.used, EVERY)
    )
    fix = (
        'A row without tokens must not divide by their number or take a root of zero, not even '
        'in what `jnp.where` throws away: guard the argument, not the result.'
    )
    assert_finite(skipped, 'gradients are not finite where a row has no tokens in a piece', fix)
    broken = 'reading a piece without tokens changed the gradient'
    assert_gradients_close(read, skipped, broken, fix)


DEAD = (
    'What no later segment reads need not be in the state; what it should read, read in `__call__`.'
)


def parameters_used(entry: Entry) -> None:
    """Every parameter has an influence on the losses of several segments.

    A parameter without a gradient is trained by a loss of its own, or is a running average: then the
    logits must change with it.
    """
    plain = entry.plain
    leaves, structure = jax.tree.flatten(entry.params)
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(plain.gradient)):
        if np.any(leaf):
            continue
        name = '/'.join(key.key for key in path)
        assert entry.declared or plain.aux.statistics, (
            f'{name} has no gradient: no logit depends on it, or `stop_gradient` is on the only way to '
            'it. Detach the state, not what is computed from parameters in this segment.'
        )
        more = np.linspace(0.5, 1, leaf.size, dtype=leaf.dtype).reshape(leaf.shape)
        changed = [*leaves[:number], leaves[number] + more, *leaves[number + 1 :]]
        found = entry.read(params=jax.tree.unflatten(structure, changed)).logits
        broken = f'{name}, when changed, left all logits as they were'
        assert_differs(found, plain.logits, broken, DEAD)


def asks(name: str) -> bool | None:
    """The field `gradients` of an entry, as its section is named; None = it has none."""
    name, _, _ = name.partition(':')
    model = toys.model_config(name)
    return model[name].get('gradients') if name in model else None


def gradients_stopped(entry: Entry) -> None:
    """Gradients of a segment reach earlier ones if, and only if, the toy's `gradients` is True."""
    _reach(entry, entry.read, bool(asks(entry.name)))


def gradients_asked(entry: Entry) -> None:
    """The same with the other value of the field, a program of its own."""
    gradients = not asks(entry.name)
    _reach(entry, _program_with(entry, gradients), gradients)


def _reach(entry: Entry, read: Callable[..., Reading], gradients: bool) -> None:
    segments, first_only = segments_of(), np.arange(SEGMENTS) < 1
    later = jax.tree.map(lambda leaf: np.roll(leaf, -1, axis=0), segments)
    later = later.replace(start=np.zeros_like(later.start))
    first = read(segments, used=first_only)
    both = read(segments, used=np.arange(SEGMENTS) < 2).gradient
    # The second segment by itself, with the memory that the first has left.
    second = read(later, state=at(first.states, 0), used=first_only)
    parts = jax.tree.map(np.add, first.gradient, second.gradient)
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(both))
    crossed = any(
        np.abs(found - wanted).max(initial=0) > 1e-5 * largest
        for found, wanted in zip(jax.tree.leaves(both), jax.tree.leaves(parts), strict=True)
    )
    assert crossed == gradients, (
        f'with gradients={gradients} {"no" if gradients else "a"} gradient of the second segment '
        'reaches the first: `if not self.gradients: state = jax.lax.stop_gradient(state)`'
    )


def _program_with(entry: Entry, gradients: bool) -> Callable[..., Reading]:
    """`entry.read` with another value of the field `gradients`."""
    section = toys.model_config(entry.name)[entry.name].to_dict()
    section['gradients'] = gradients
    model = toys.with_config(entry.name, layers=1, **{entry.name: section})
    program = jax.jit(reading(model))

    def read(segments: Segment, *, state: Any = entry.begin, used: np.ndarray = EVERY) -> Reading:
        (loss, found), gradient = jax.device_get(program(entry.params, state, segments, used))
        logits, states, aux = found
        return Reading(loss, logits, states, aux, gradient)

    return read


# Operations of JAX that are calls of LAPACK on CPUs.
LAPACK = {
    'cholesky', 'eig', 'eigh', 'geqp3', 'geqrf', 'hessenberg', 'householder_product', 'lu', 'ormqr',
    'qr', 'schur', 'svd', 'triangular_solve', 'tridiagonal', 'tridiagonal_solve',
}  # fmt: skip


def no_lapack(entry: Entry) -> None:
    """No training step calls LAPACK: on CPUs, two of its calls at once can wait for each other.

    Looks at the gradient of evaluation, and at what is computed in training.
    """
    programs = entry.traced.jaxpr, entry.traced_training.jaxpr
    called = {each.primitive.name for program in programs for each in equations(program)} & LAPACK
    assert not called, (
        f'the step calls {", ".join(sorted(called))} of LAPACK: see `layers/triangular.py` for solves '
        'and orthonormal vectors by products of matrices'
    )


def dropout(entry: Entry) -> None:
    """In training a key gives the same draws again, and every segment others."""
    segments = segments_of()
    same = jax.tree.map(lambda leaf: np.stack([leaf[0]] * SEGMENTS), segments)
    first, again = (entry.read_training(same).logits for _ in range(2))
    fix = 'Draw from `self.make_rng`, with nothing but the key of the segment.'
    assert_finite(first, 'logits are not finite in training', fix)
    axes = ('segment', 'row', 'position')
    assert_equal(first, again, 'the same key gives other logits', fix, axes=axes)
    # All segments start a document with the same tokens.
    assert_differs(first[0], first[1], 'two segments have the same dropout', fix)
