"""Promises of states and reports: kinds that never change, memory that is written and read, `Aux`."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.generation import memory_file
from longmem_jax.generation.reader import fresh_state
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import Aux
from longmem_jax.testing import toys
from longmem_jax.testing.assertions import (
    assert_close,
    assert_differs,
    assert_equal,
    assert_finite,
    assert_no_open_loop,
    assert_same_types,
)
from longmem_jax.testing.gradients import DEAD, MEANS, means
from longmem_jax.testing.programs import ROWS, Entry, Reading, at, segments_of
from longmem_jax.testing.segments import LOGITS, MASK, carries, change_tokens
from longmem_jax.testing.toys import BATCH, LENGTH, SEGMENTS

# Leaves of states in the dtype of activations: vectors as they were, never added to.
COPIES = {
    'hidden', 'keys', 'values', 'vectors', 'recent', 'tails', 'window', 'buffer', 'pending',
    'compressed', 'rows_keys', 'rows_values',
}  # fmt: skip


def sums_are_float32(entry: Entry) -> None:
    """With bfloat16 activations; a sum of bfloat16 swallows what is added after a few hundred tokens."""
    model = toys.with_config(entry.name, layers=1, dtype='bfloat16')
    state = jax.eval_shape(lambda: fresh_state(model, entry.params, BATCH))
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        names = {getattr(key, 'name', '') for key in path}
        assert leaf.dtype != jnp.bfloat16 or names & COPIES, (
            f'state{jax.tree_util.keystr(path)} is bfloat16 if activations are: what is added to wants '
            'float32, `jnp.promote_types(dtype, jnp.float32)`. Vectors that are only copied are named '
            f'{", ".join(sorted(COPIES))}.'
        )


CARRY = (
    'With `carry=False` every segment begins with `initial_state`, and the state stays as it is.'
)
# By the beginning of an entry's name, the end of a leaf's path: arrays that other settings read, and
# that are there so that files of memories name the same arrays. The sum of keys, of memories that do not
# divide by it; the histogram for sticky memories, without these.
UNREAD = (
    ('memsizer', '.normalizer'),
    ('infini:sequential', '.normalizer'),
    ('infinity_former:clearing', '.long.mass'),
    # The least used vectors in these texts, so none is chosen; tests of evicting hold the promise.
    ('compressive:most_used', '.pending'),
)


def written_and_read(entry: Entry) -> None:
    """Every leaf of a state but whole numbers, which are compared with those of streams."""
    states, fresh, later = entry.plain.states, entry.fresh, segments_of()
    later = later.replace(start=np.zeros_like(later.start))
    random, unchanged_logits = np.random.default_rng(0), {}
    for number, (path, begin) in enumerate(jax.tree_util.tree_leaves_with_path(fresh)):
        if not np.issubdtype(begin.dtype, np.floating):
            continue
        name = f'state{jax.tree_util.keystr(path)}'
        unread = any(entry.name.startswith(first) and name.endswith(last) for first, last in UNREAD)
        if unread or not begin.size:
            continue
        written = jax.tree.leaves(states)[number]
        unchanged = np.broadcast_to(begin, written.shape)
        if not carries(entry):
            assert_equal(written, unchanged, f'a segment changed {name}', CARRY)
            continue
        assert_differs(written, unchanged, f'{name} is never written', DEAD)
        read = False
        for segment in (1, 2):  # vectors that wait for others may be none at one of these borders
            leaves, structure = jax.tree.flatten(at(states, segment))
            if segment not in unchanged_logits:
                unchanged_logits[segment] = entry.read(later, state=at(states, segment)).logits
            noise = random.normal(size=begin.shape).astype(begin.dtype)
            leaves[number] = leaves[number] + noise
            found = entry.read(later, state=jax.tree.unflatten(structure, leaves)).logits
            read = read or not np.array_equal(unchanged_logits[segment], found)
        assert read, f'{name}, when changed, left all later logits as they were. {DEAD}'


def reports(entry: Entry) -> None:
    """`Aux`: declared losses, finite without tokens, blind to padding, means over the batch."""
    declared, segments = entry.declared, segments_of()

    def read(segments: Any) -> Aux:  # some losses are computed in training only
        return (entry.read_training if declared else entry.read)(segments).aux

    plain = read(segments)
    assert sorted(plain.losses) == declared, (
        f'`Aux.losses` are {sorted(plain.losses)}, but `LayerType.losses` declares {declared}'
    )
    valid: Any = segments.valid.copy()
    valid[1:3] = False
    empty = read(segments.replace(valid=valid))
    assert_finite(
        empty,
        'a segment of padding in all rows gives an `Aux` that is not finite',
        'Divide by `jnp.maximum(number, 1)`: there may be no token to average over.',
    )
    valid = segments.valid.copy()
    valid[:, 0, 3:] = valid[:, 1, 2:] = valid[2, 0] = False
    padded, other = (
        read(some.replace(valid=valid)) for some in (segments, change_tokens(segments, ~valid))
    )
    assert_equal(other, padded, 'what stands in the padding changed `Aux`', MASK, axes=('segment',))
    # Rows keep their places, since draws may differ between them: what is a mean over rows is the same
    # for (A, B) and (C, D) as for (A, D) and (C, B).
    others = change_tokens(segments, np.ones(valid.shape, bool))
    rows = np.arange(ROWS)[None, :, None] == 0
    mixed = [
        read(segments.replace(tokens=np.where(rows, first.tokens, second.tokens)))
        for first, second in ((others, others), (segments, others), (others, segments))
    ]
    for kind in ('losses', 'metrics'):
        both, third, left, right = (means(aux, kind) for aux in (plain, *mixed))
        assert_close(
            jax.tree.map(np.add, left, right),
            jax.tree.map(np.add, both, third),
            f'`Aux.{kind}` of a batch are not the means of those of its halves',
            MEANS,
            axes=('segment',),
            atol=1e-6,
            rtol=1e-4,
        )


def bounded(entry: Entry) -> None:
    """By induction: a step returns the kind of state it was given, and no loop waits on its values."""
    fix = 'A state has a fixed capacity, told by the fields of the layer; say what is filled.'
    (_, (_, states, _)), _ = entry.traced.out_info
    after = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), states)
    assert_same_types(after, entry.begin, 'a segment changed the kind of state', fix)
    _, stream = entry.traced_token.out_info
    assert_same_types(stream, entry.stream, 'a token changed the kind of state', fix)
    for traced, what in ((entry.traced, 'segment'), (entry.traced_token, 'token')):
        assert_no_open_loop(
            traced.jaxpr,
            f'the time for a {what} depends on what is in the memory',
            'Use `scan` or `fori_loop` of a fixed length, or `switch` between fixed sizes.',
        )


EDGE = 2**31 - 1
# A count that is stored modulo some number has the same remainder after this many tokens more.
FAR = 12 * LENGTH


def far_counts(entry: Entry) -> None:
    """Documents of more than 2^31 tokens: counts pass the edge of int32, and none is negative.

    Nobody reads so far in a test: states are moved there, to what the layer would have reached.
    """
    fix = (
        'Hold a count at its largest value (`segment.count_on`), or keep it modulo what it is used for '
        '(`segment.count_round`): int32 ends at 2^31 - 1 tokens of one document. `Lane.positions` stays '
        'there, so what depends on a remainder of it needs a number of its own in the state.'
    )
    later = segments_of()
    later = later.replace(start=np.zeros_like(later.start))

    def onward(state: Any, number: int) -> tuple[Any, list[Reading]]:
        """The state after this number of segments, and their readings."""
        found = []
        for _ in range(number // SEGMENTS):
            found.append(entry.read(later, state=state))
            state = at(found[-1].states, -1)
        return state, found

    def grown(move: Callable[[np.ndarray], Any]) -> Any:
        """The state `after` with other values of the counts that grow in every lane."""
        return jax.tree.map(
            lambda old, new: (
                new + np.int32(move(new))
                if np.issubdtype(new.dtype, np.integer) and new.size and (new > old).all()
                else new
            ),
            before,
            after,
        )

    before, _ = onward(entry.fresh, 12)
    after, _ = onward(before, 12)
    wanted = onward(after, 16)[1]
    moved = onward(grown(lambda count: 10 * FAR), 16)[1]
    edge = onward(grown(lambda count: (EDGE - count.max()) // FAR * FAR), 16)[1]
    for plain, other, found in zip(wanted, moved, edge, strict=True):
        assert_finite(found.logits, 'logits are not finite beyond 2^31 tokens', fix)
        # A number that tells random keys apart is no count: other values give other draws.
        if np.array_equal(plain.logits, other.logits):
            broken = 'logits beyond 2^31 tokens differ from those before'
            assert_close(found.logits, plain.logits, broken, fix, axes=LOGITS, atol=1e-6)
        sizes = found.aux.metrics.get('memory_size', np.zeros(()))
        assert (sizes >= 0).all(), f'memory_size is negative beyond 2^31 tokens. {fix}'
    # One segment before the edge: a ring of rows comes back to its size with the first one.
    last = onward(grown(lambda count: EDGE - LENGTH - count), 12)[0]
    for path, leaf in jax.tree_util.tree_leaves_with_path(last):
        assert leaf.dtype != np.int32 or (leaf >= 0).all(), (
            f'state{jax.tree_util.keystr(path)} is negative beyond 2^31 tokens. {fix}'
        )


def memory_is_a_file(entry: Entry) -> None:
    """As `--save_state` writes it and `--load_state` reads it, which refuses what no memory has."""
    one = jax.tree.map(lambda leaf: leaf[-1, :1], entry.plain.states)
    about, none = memory_file.described(entry.model), np.zeros((1, 0), np.int32)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'memory')
        memory_file.save(path, one, none, about, entry.params)
        found, _ = memory_file.load(path, one, about, entry.params)
    fix = 'every leaf must be finite, and whole numbers (int32) counts, distances or tokens'
    assert_equal(found, one, 'a memory out of a file differs', fix, axes=('row',))


def float64_is_for_activations(entry: Entry) -> None:
    """With JAX_ENABLE_X64, parameters and states are what they are without it."""
    model, segment = entry.model, at(segments_of(), 0)

    def types() -> Any:
        params = unbox(jax.eval_shape(lambda: initial_parameters(model, jax.random.key(1))))
        read = jax.eval_shape(
            lambda params: model.apply(
                {'params': params}, segment, fresh_state(model, params, ROWS), train=False
            ),
            params,
        )
        return params, read[:2]

    (_, (logits, _, _)), _ = entry.traced.out_info
    logits = jax.ShapeDtypeStruct(logits.shape[1:], logits.dtype)
    wanted = entry.params, (logits, entry.begin)
    with jax.enable_x64(True):
        found = types()
    fix = 'Name the dtype of what is made or drawn; `initial_parameters` casts the parameters.'
    assert_same_types(found, wanted, 'JAX_ENABLE_X64 changed a type', fix)


def long_streams(entry: Entry) -> None:
    """60 segments: errors of float32 and of bfloat16 activations do not add up in the memory."""
    name, changes = entry.name, {}
    nearest = LAYERS[name].layer.nearest if name in LAYERS else ''
    if nearest:  # a change of dtype can change which entries are nearest: take all
        own = toys.model_config(name)[name]
        changes[name] = own.to_dict() | dict(top_k=own[nearest])

    def read(dtype: str, params: Any) -> tuple[np.ndarray, Any]:
        model = toys.with_config(name, layers=1, dtype=dtype, **changes)
        state = jax.jit(lambda: fresh_state(model, params, ROWS))()
        logits, step = [], jax.jit(model.apply, static_argnames='train')
        for number in range(60):
            segment = at(segments_of(60), number)
            found, state, _ = step({'params': params}, segment, state, train=False)
            logits.append(np.asarray(found))
        return np.stack(logits), state

    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), entry.params)
        logits, _ = read('float64', wide)
    scale = float(np.abs(logits).max())
    broken = '{} activations move the logits of a long text too far from those of {}'
    fix = (
        'Softmax, sums over tokens, normalizers and state want float32: '
        '`preferred_element_type`, `jnp.promote_types(dtype, jnp.float32)`.'
    )
    found, _ = read('float32', entry.params)
    text = broken.format('float32', 'float64')
    assert_close(found, logits, text, fix, axes=LOGITS, atol=5e-6 * scale, rtol=0.0)
    close, state = read('bfloat16', entry.params)
    assert close.dtype == np.float32, f'logits are {close.dtype}, not float32'
    half = toys.with_config(name, layers=1, dtype='bfloat16', **changes)
    assert_same_types(
        state,
        jax.eval_shape(lambda: fresh_state(half, entry.params, ROWS)),
        'bfloat16 activations changed the type of a state',
        'Cast what is written to the dtype of the state: `new.astype(old.dtype)`.',
    )
    text = broken.format('bfloat16', 'float64')
    # Of the pairs of two halves some are still chosen and others not.
    most = (6e-2 if nearest else 2e-2) * scale
    assert_close(close, logits, text, fix, axes=LOGITS, atol=most, rtol=0.0)
