r"""One document of a million tokens through every memory, in float64, float32 and bfloat16.

Small models of one layer with random parameters read random tokens, segment after segment. The same
document is read in three types; what they differ by at its start and at its end is compared, so that
an error that adds up in a memory is seen. At the end the next segment is also read token by token.

    python -m tests.campaigns.long_streams --output=TABLE.md [--names=infini,memsizer] \
        [--tokens=1000000] [--length=10] [--types=float64,float32,bfloat16]
"""

import argparse
import contextlib
import dataclasses
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.stream import open_stream, read_token
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import make_model
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import Segment
from tests.toys import VOCAB, every_layer, model_config

PARTS = 64  # the stream is read in as many calls; its first and its last part are compared
MARKS = {'1/64': 1, '1/4': 16, '1/2': 32, 'all': 64}  # parts after which the state is measured
TYPES = ('float64', 'float32', 'bfloat16')


@dataclasses.dataclass(frozen=True)
class Stream:
    """A document that was read.

    Attributes:
      first, last: float64 [segments, vocab], logits after every segment of the first and last part.
      largest: largest absolute value in the state, at `MARKS`.
      finite: all logits, and all states at the ends of parts, are finite.
      fresh, after: largest difference between the logits of a segment read at once and token by
        token, at the start and at the end.
    """

    first: np.ndarray
    last: np.ndarray
    largest: tuple[float, ...]
    finite: bool
    fresh: float
    after: float


@dataclasses.dataclass(frozen=True)
class Row:
    """What a memory did with the document.

    Attributes:
      name: as in `tests.toys.every_layer`.
      tokens: length of the document.
      largest, finite, fresh, after: of the float32 stream, see `Stream`; `finite` of all streams.
      single: largest difference of logits of float32 from those of float64 over the largest logit,
        in the first and in the last part; None without float64.
      half: mean difference of bfloat16 from float32 over the mean absolute logit, likewise.
    """

    name: str
    tokens: int
    largest: tuple[float, ...]
    finite: bool
    fresh: float
    after: float
    single: tuple[float, float] | None
    half: tuple[float, float]


def _segment(tokens: jax.Array) -> Segment:
    return Segment(tokens, jnp.ones(tokens.shape, bool), jnp.zeros(tokens.shape[:1], bool))


@functools.partial(jax.jit, static_argnums=0)
def _read(model: Any, params: Any, state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
    """Reads segments [n, 1, length]: the state, and the last logits of every segment [n, vocab]."""

    def one(state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        logits, state, _ = model.apply({'params': params}, _segment(tokens), state, train=False)
        return state, logits[0, -1]

    return jax.lax.scan(one, state, tokens)


@functools.partial(jax.jit, static_argnums=0)
def _token_by_token(model: Any, params: Any, state: Any, tokens: jax.Array) -> jax.Array:
    """Largest difference of the logits of a segment [1, length] that is read in two ways."""
    whole, _, _ = model.apply({'params': params}, _segment(tokens), state, train=False)

    def one(stream: Any, token: jax.Array) -> tuple[Any, jax.Array]:
        logits, stream = read_token(model, params, token, stream)
        return stream, logits

    _, single = jax.lax.scan(one, open_stream(model, params, state, 1), tokens.T)
    return jnp.abs(whole[0] - single[:, 0]).max()


def _largest(state: Any) -> float:
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return max((float(jnp.abs(leaf).max()) for leaf in leaves if leaf.size), default=0.0)


def read_stream(model: Any, params: Any, tokens: np.ndarray) -> Stream:
    """Reads one document.

    Args:
      model, params: a language model.
      tokens: int32 [PARTS, segments, 1, length].
    """
    state, largest, finite = fresh_state(model, params, 1), [], True
    fresh = float(_token_by_token(model, params, state, tokens[0, 0]))
    for number, part in enumerate(tokens, 1):
        state, logits = _read(model, params, state, part)
        logits = np.asarray(logits, np.float64)
        if number == 1:
            first = logits
        value = _largest(state)
        finite = finite and bool(np.isfinite(logits).all()) and bool(np.isfinite(value))
        if number in MARKS.values():
            largest.append(value)
    after = float(_token_by_token(model, params, state, tokens[0, 0]))
    return Stream(first, logits, tuple(largest), finite, fresh, after)


def compare(name: str, num_tokens: int, length: int = 10, types: Sequence[str] = TYPES) -> Row:
    """Reads one document of about `num_tokens` tokens with memory `name`.

    Args:
      name: as in `tests.toys.every_layer`.
      num_tokens: of the document.
      length: tokens of a segment.
      types: of `TYPES`, with float32 and bfloat16.
    """
    segments = max(num_tokens // (PARTS * length), 1)
    shape = (PARTS, segments, 1, length)
    tokens = np.random.default_rng(0).integers(0, VOCAB, shape).astype(np.int32)
    changes, base = {}, name.partition(':')[0]
    nearest = LAYERS[base].layer.nearest if base in LAYERS else ''
    if nearest:  # a change of type can change which entries are nearest: take all
        own = model_config(name)[base].to_dict()
        changes[base] = own | dict(top_k=own[nearest])
    models = {
        dtype: make_model(model_config(name, 1, dtype=dtype, **changes), length) for dtype in types
    }
    random_parameters = functools.partial(initial_parameters, models['float32'], jax.random.key(1))
    params, streams = unbox(jax.jit(random_parameters)()), {}
    for dtype, model in models.items():
        wide = dtype == 'float64'
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            cast = (
                jax.tree.map(lambda leaf: jnp.asarray(leaf, 'float64'), params) if wide else params
            )
            streams[dtype] = read_stream(model, cast, tokens)
    exact, single, half = (streams.get(dtype) for dtype in TYPES)

    def away(part: str, found: Stream, wanted: Stream, middle: Any) -> float:
        found, wanted = getattr(found, part), getattr(wanted, part)
        return float(middle(np.abs(found - wanted)) / middle(np.abs(wanted)))

    return Row(
        name=name,
        tokens=tokens.size,
        largest=single.largest,
        finite=all(stream.finite for stream in streams.values()),
        fresh=single.fresh,
        after=single.after,
        single=exact and tuple(away(part, single, exact, np.max) for part in ('first', 'last')),
        half=tuple(away(part, half, single, np.mean) for part in ('first', 'last')),
    )


def table(rows: list[Row]) -> str:
    """The rows as a markdown table."""
    titles = (
        'memory',
        f'largest value of the state after {", ".join(MARKS)} of the document',
        'float32 against float64, first and last part',
        'bfloat16 against float32, first and last part',
        'token by token against whole segments, with an empty memory and at the end',
        'finite',
    )
    lines = [f'| {" | ".join(titles)} |', f'|{"---|" * len(titles)}']
    for row in rows:
        pairs = (row.single, row.half, (row.fresh, row.after))
        cells = (
            f'`{row.name}`',
            ', '.join(f'{value:.2g}' for value in row.largest),
            *(f'{pair[0]:.1e}, {pair[1]:.1e}' if pair else '' for pair in pairs),
            'yes' if row.finite else '**no**',
        )
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines) + '\n'


def main() -> None:
    """Reads the document with every memory; the table is written after each of them."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--names', default=','.join(every_layer()))
    parser.add_argument('--tokens', type=int, default=1_000_000)
    parser.add_argument('--length', type=int, default=10, help='of a segment')
    parser.add_argument('--types', default=','.join(TYPES), help='float64 may be left out')
    given = parser.parse_args()
    rows = []
    for name in given.names.split(','):
        begin = time.monotonic()
        rows.append(compare(name, given.tokens, given.length, given.types.split(',')))
        given.output.write_text(table(rows))
        print(f'{name}: {rows[-1].tokens:,} tokens, {time.monotonic() - begin:.0f} s', flush=True)


if __name__ == '__main__':
    main()
