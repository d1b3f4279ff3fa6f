"""A text read segment by segment, with the memory and without it, and what the memory did.

On the device everything is cut down to a fixed size per segment, so space does not grow with the text:
histograms of what is held, and of what is read the largest weights per token, layer and head.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax import stopping
from longmem_jax.generation.contexts import Rows, cut
from longmem_jax.memory.registry import LAYERS, used
from longmem_jax.models.inspect import Glimpse, glimpses
from longmem_jax.segment import Segment
from longmem_jax.views import NOWHERE, Held, Read, View

AGES = 32  # bins of ages: 1, 2-3, 4-7, 8-15, ...
FROM_MEMORY, FROM_SEGMENT = 8, 4  # reads kept per token, layer and head
SHARES = ('memory', 'segment', 'no token')
OF_READS = ('places', 'weights', 'spans', 'shares', 'slots', 'slot_weights')


@dataclasses.dataclass
class LayerReading:
    """What one layer did; arrays end with the text.

    Attributes:
      held: name to float32 [segments + 1, AGES], weight by age before every segment and at the end.
      mean_age: name to float64 [segments + 1], in tokens; nan where nothing is held.
      places: int32 [reads, heads, FROM_MEMORY + FROM_SEGMENT], the token that was read, below 0 before
        the text, or `NOWHERE`; None if the layer says nothing of its reads.
      weights: float32, like `places`; 0 where nothing was read.
      shares: float32 [reads, heads, 3], how much was read of `SHARES`.
      spans: int32, like `places`: tokens that were read together, ending with that one.
      slots, slot_weights: like `places` and `weights`: numbers of slots, [reads, heads, FROM_MEMORY].
      by_token: name to float32 [tokens, lines].
      by_segment: name to float32 [segments, lines].
    """

    held: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    mean_age: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    places: np.ndarray | None = None
    weights: np.ndarray | None = None
    shares: np.ndarray | None = None
    spans: np.ndarray | None = None
    slots: np.ndarray | None = None
    slot_weights: np.ndarray | None = None
    by_token: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    by_segment: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Reading:
    """What a model made of a text.

    Attributes:
      tokens: int32 [n].
      nats, without: float32 [n], losses with the memory and with one reset before every segment; nan for
        a first token before which there was nothing.
      first: number of tokens read before the first one of the text since the last segment border.
      length: tokens per segment.
      layers: path to what the layer did; only of those that say something.
      reads: the last tokens of the text whose reads are kept.
      state: the memories at the end, numpy arrays.
    """

    tokens: np.ndarray
    nats: np.ndarray
    without: np.ndarray
    first: int
    length: int
    layers: dict[str, LayerReading]
    reads: int
    state: Any

    @property
    def gain(self) -> np.ndarray:
        """Nats that the memory saves, float32 [n]."""
        return self.without - self.nats


def views_of(model: Any) -> dict[type, View]:
    """The views of a model's layers, by class."""
    return {LAYERS[name].layer.module: LAYERS[name].view for name in used(model.config)}


def read_text(
    model: Any,
    params: Any,
    state: Any,
    fresh: Any,
    before: np.ndarray,
    tokens: np.ndarray,
    *,
    reads: int,
    report: Callable[[int], None] = lambda done: None,
) -> Reading:
    """Reads a text.

    Args:
      state: memories at the last segment border, every leaf [1, ...].
      fresh: memories at the start of a document.
      before: int32 [m], tokens read since that border: the begin token at the start of a document.
      tokens: int32 [n], the text.
      reads: of how many tokens, the last ones, what they read is kept.
      report: called with the number of tokens read, now and then.
    """
    whole = np.concatenate([before, tokens]).astype(np.int32)
    offset, length = len(before), model.segment_length
    rows = cut([whole[:-1]], 1, length, [whole[1:]], [0])
    # Input position i is followed by token i + 1 - offset of the text.
    kept_from = max(len(tokens) - reads, 0) + offset - 1
    nats, without, parts = [], [], []
    for number in range(len(rows.tokens)):
        row = jax.tree.map(lambda leaf, number=number: leaf[number], rows)
        start, size = number * length, int(row.valid.sum())
        state, found = _read(model, params, state, fresh, row)
        with_memory, reset, said = jax.device_get(found)
        nats.append(with_memory[:size])
        without.append(reset[:size])
        for part in said.values():
            first = max(kept_from - start, 0)
            part['by_token'] = {name: line[:size] for name, line in part['by_token'].items()}
            if 'places' in part:
                places = part['places']
                part['places'] = np.where(places == NOWHERE, NOWHERE, places + start - offset)
            for name in OF_READS:
                if name in part:
                    part[name] = part[name][first:size]
        parts.append(said)
        report(max(start + size - offset + 1, 0))
        stopping.poll()

    def of_text(by_position: list[np.ndarray]) -> np.ndarray:
        """Without what belongs to tokens before the text; nan for one that nothing precedes."""
        joined = np.concatenate(by_position).astype(np.float32)
        if offset:
            return joined[offset - 1 :]
        return np.concatenate([np.full((1, *joined.shape[1:]), np.nan, np.float32), joined])

    if not parts:  # a single token, before which there was nothing
        nothing = np.full(len(tokens), np.nan, np.float32)
        return Reading(tokens, nothing, nothing, offset, length, {}, 0, jax.device_get(state))
    layers = {path: _joined([part[path] for part in parts], of_text) for path in parts[0]}
    return Reading(
        tokens=tokens,
        nats=of_text(nats),
        without=of_text(without),
        first=offset,
        length=length,
        layers={path: layers[path] for path in sorted(layers, key=_order) if _says(layers[path])},
        reads=min(reads, len(tokens), len(whole) - 1),
        state=jax.device_get(state),
    )


def _order(path: str) -> list[tuple[int, str]]:
    """Sorts 'block_10' after 'block_2', and attention before what follows it."""
    words = path.replace('_', '/').split('/')
    return [(int(word), '') if word.isdigit() else (-1, word) for word in words]


def _says(layer: LayerReading) -> bool:
    """Whether there is anything to show."""
    return any(len(part) for part in vars(layer).values() if part is not None)


def _joined(parts: list[dict[str, Any]], of_text: Callable[..., np.ndarray]) -> LayerReading:
    """A layer's segments together."""
    layer = LayerReading()
    for name in parts[0]['held']:
        rows = [part['held'][name] for part in parts] + [parts[-1]['after'][name]]
        layer.held[name] = np.stack([weight for weight, _ in rows])
        total = layer.held[name].sum(axis=1, dtype=np.float64)
        ages = np.asarray([age for _, age in rows], np.float64)
        layer.mean_age[name] = np.divide(
            ages, total, out=np.full(len(rows), np.nan), where=total > 0
        )
    for name in OF_READS:
        found = [part[name] for part in parts if name in part]
        if found:
            setattr(layer, name, np.concatenate(found))
    for name in parts[0]['by_token']:
        layer.by_token[name] = of_text([part['by_token'][name] for part in parts])
    for name in parts[0]['by_segment']:
        layer.by_segment[name] = np.stack([part['by_segment'][name] for part in parts])
    return layer


@functools.partial(jax.jit, static_argnums=0)
def _read(
    model: Any, params: Any, state: Any, fresh: Any, row: Rows
) -> tuple[Any, tuple[jax.Array, jax.Array, dict[str, dict[str, Any]]]]:
    """Reads a segment of one lane: the memories after it; losses with and without; what was done."""
    start = jnp.zeros((1,), bool)
    segment = Segment(row.tokens, row.valid, start)
    nats, new, found = glimpses(model, params, segment, row.targets, state, views_of(model))
    # As `--mode=evaluate` measures it: reset before the segment, at equal positions.
    without, _, _ = model.apply(
        {'params': params}, segment, row.targets, fresh, train=False, method='nll'
    )
    said = {path: _reduced(glimpse) for path, glimpse in found.items()}
    return new, (nats[0], without.nll[0], said)


def _reduced(glimpse: Glimpse) -> dict[str, Any]:
    """What is kept of a glimpse of one lane."""
    said: dict[str, Any] = {
        'held': {name: _by_age(held) for name, held in glimpse.held.items()},
        'after': {name: _by_age(held) for name, held in glimpse.after.items()},
        'by_token': {name: line[0] for name, line in glimpse.series.by_token.items()},
        'by_segment': {name: line[0] for name, line in glimpse.series.by_segment.items()},
    }
    of_tokens = [read for read in glimpse.read.values() if not read.slots]
    of_slots = [read for read in glimpse.read.values() if read.slots]
    if of_tokens:
        said |= _largest_of_tokens(of_tokens)
    if of_slots:
        weights, numbers, _ = _flat(of_slots)
        slot_weights, at = jax.lax.top_k(weights, min(FROM_MEMORY, weights.shape[-1]))
        said |= {
            'slot_weights': _queries_first(slot_weights),
            'slots': _queries_first(jnp.take_along_axis(numbers, at, axis=-1)),
        }
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        said,
    )


def _by_age(held: Held) -> tuple[jax.Array, jax.Array]:
    """Weight by bin of age, [AGES]; and the sum of weights times ages."""
    weights = held.weights[0]
    ages = jnp.broadcast_to(held.ages, held.weights.shape)[0]
    bins = 31 - jax.lax.clz(jnp.maximum(ages, 1).astype(jnp.int32))
    sums = jnp.zeros((AGES,), jnp.float32).at[bins].add(weights)
    return sums, (weights * ages).sum()


def _queries_first(array: jax.Array) -> jax.Array:
    """[heads, length, n] as [length, heads, n]."""
    return jnp.swapaxes(array, 0, 1)


def _flat(reads: list[Read]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Weights, places and spans of all keys of several reads: [heads, length, keys] each."""
    heads = max(read.weights.shape[1] for read in reads)
    weights, places, spans = [], [], []
    for read in reads:
        shape = (heads, *read.weights.shape[2:])
        weights.append(jnp.broadcast_to(read.weights[0], shape))
        places.append(jnp.broadcast_to(read.places, read.weights.shape)[0])
        places[-1] = jnp.broadcast_to(places[-1], shape)
        spans.append(jnp.full(shape, read.tokens, jnp.int32))
    whole, where, joined = (jnp.concatenate(arrays, axis=-1) for arrays in (weights, places, spans))
    return whole, where, joined


def _largest_of_tokens(reads: list[Read]) -> dict[str, jax.Array]:
    """The largest weights from the memory and from the segment, and the shares of both."""
    weights, places, spans = _flat(reads)
    remembered = (places < 0) & (places > NOWHERE)
    masks = (remembered, places >= 0, places <= NOWHERE)
    shares = jnp.stack([jnp.where(mask, weights, 0.0).sum(axis=-1) for mask in masks], axis=-1)
    kept: dict[str, list[jax.Array]] = {'weights': [], 'places': [], 'spans': []}
    for mask, number in zip(masks, (FROM_MEMORY, FROM_SEGMENT), strict=False):
        found, at = jax.lax.top_k(jnp.where(mask, weights, 0.0), min(number, weights.shape[-1]))
        room = [(0, 0), (0, 0), (0, number - found.shape[-1])]
        kept['weights'].append(jnp.pad(found, room))
        for name, array in (('places', places), ('spans', spans)):
            array = jnp.take_along_axis(array, at, axis=-1)
            empty = NOWHERE if name == 'places' else 1
            array = jnp.where(found > 0, array, empty)
            kept[name].append(jnp.pad(array, room, constant_values=empty))
    joined = {name: jnp.concatenate(arrays, axis=-1) for name, arrays in kept.items()}
    return {name: _queries_first(array) for name, array in (joined | {'shares': shares}).items()}
