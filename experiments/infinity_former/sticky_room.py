"""What sticky memories keep: one vector in a continuous memory, by the attention on it.

python -m experiments.infinity_former.sticky_room --output=sticky_room.png

The numbers are written beside the figure, as sticky_room.json.

No model is trained. A vector is written in the middle of a write; all later writes are zeros. Before
each, a share of the attention is a Gaussian around the largest value of the signal, the rest is even.
What is left is measured by the integral of the signal over [0, 1], as a wide density reads it; it is 1
at the first write. It may grow, since repeated sampling at one position widens the vector.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np

from experiments import markdown, provenance
from experiments.options import add_seeds, make_parser
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.reporting import figures

BASIS, WIDTHS, SAMPLES, RIDGE, BINS = 64, (0.023, 0.05), 64, 0.5, 128
LENGTH = 32  # vectors per write
WIDER = (0.05, 0.08, 0.1, 0.15, 0.2)  # Gaussians of a quarter of the attention
WRITES = (1, 2, 4, 8, 16, 32)
PLACES = (np.arange(1024) + 0.5) / 1024


def positions(kind: str, mass: np.ndarray, key: jax.Array) -> np.ndarray:
    """Where the old signal is read, as in the layer: float [SAMPLES]; `mass` [BINS] is the attention."""
    if kind == 'none':
        return np.arange(1, SAMPLES + 1) / SAMPLES
    probabilities = continuous.bin_probabilities(jnp.asarray(mass[None], jnp.float32))
    if kind == 'quantile':
        return np.asarray(continuous.quantile_places(probabilities, SAMPLES)[0])
    first, second = jax.random.split(key)
    bins = continuous.sampled_bins(first[None], probabilities, SAMPLES)
    if kind == 'sampled':
        return np.asarray(continuous.sampled_places(bins, BINS)[0])
    return np.asarray(continuous.places_inside(second[None], bins, BINS)[0])


@functools.cache
def left(kind: str, share: float, width: float, tau: float, seed: int = 0) -> tuple[float, ...]:
    """What is left of the vector after each number of writes of `WRITES`.

    Args:
      kind: one of `continuous.STICKY`.
      share: of the attention that rests on the vector.
      width: of its Gaussian.
      tau: share of [0, 1] that old vectors are contracted to.
      seed: of the random kinds.
    """
    first, update = continuous.fit_matrices(LENGTH, SAMPLES, tau, RIDGE, BASIS, WIDTHS)
    functions = continuous.gaussian_basis(BASIS, WIDTHS)
    read = continuous.psi64(PLACES, *functions)
    coefficients, found = first[LENGTH // 2], []
    for write in range(WRITES[-1] + 1):
        signal = read @ coefficients
        found.append(float(signal.mean()))
        centres = (np.arange(BINS) + 0.5) / BINS
        around = np.exp(-0.5 * ((centres - PLACES[signal.argmax()]) / width) ** 2)
        mass = share * around / around.sum() + (1 - share) / BINS
        key = jax.random.fold_in(jax.random.key(seed), write)
        old = continuous.psi64(positions(kind, mass, key), *functions) @ coefficients
        coefficients = update[:SAMPLES].T @ old
    return tuple(found[write] / found[0] for write in WRITES)


def label(kind: str, share: float, width: float) -> str:
    """The attention on the vector, in words."""
    return f'{100 * share:g} %, {width:g} wide' if kind != 'none' else 'any'


def numbers(rows: list[tuple[str, float, float]], tau: float, seeds: list[int]) -> dict[str, Any]:
    """Row to number of writes to seed to what is left."""
    found: dict[str, Any] = {}
    for kind, share, width in rows:
        by_write = found.setdefault(f'{kind}, {label(kind, share, width)}', {})
        for seed in seeds if kind.startswith('sampled') else [0]:
            values = left(kind, share, width, tau, seed)
            for write, value in zip(WRITES, values, strict=True):
                by_write.setdefault(str(write), {})[str(seed)] = round(value, 6)
    return found


def table(rows: list[tuple[str, float, float]], tau: float, seeds: list[int]) -> str:
    """A Markdown table; rows of (kind, share, width), random kinds as mean (minimum - maximum)."""
    lines = []
    for kind, share, width in rows:
        drawn = seeds if kind.startswith('sampled') else [0]
        values = np.asarray([left(kind, share, width, tau, seed) for seed in drawn])
        cells = [
            f'{column.mean():.3f}'
            + (f' ({column.min():.2f} - {column.max():.2f})' if len(drawn) > 1 else '')
            for column in values.T
        ]
        lines.append([f'`{kind}`', label(kind, share, width), *cells])
    heads = ['sampling', 'attention on it', *(f'{number} later' for number in WRITES)]
    return markdown.table(heads, lines)


def draw(
    rows: list[tuple[str, float, float]], tau: float, seeds: list[int], path: Path
) -> matplotlib.figure.Figure:
    """Draws the means of `table` by the number of writes."""
    figure, axes = figures.one_panel(8, 4)
    styles = {'none': '-', 'quantile': '-', 'sampled': '--', 'sampled_inside': ':'}
    shares = sorted({share for kind, share, _ in rows if kind != 'none'})
    for kind, share, width in rows:
        drawn = seeds if kind.startswith('sampled') else [0]
        values = np.mean([left(kind, share, width, tau, seed) for seed in drawn], axis=0)
        name = 'none' if kind == 'none' else f'{kind}, {label(kind, share, width)}'
        color = 'black' if kind == 'none' else f'C{shares.index(share)}'
        axes.plot(WRITES, values, styles[kind], marker='o', markersize=3, color=color, label=name)
    axes.set_xscale('log', base=2)
    axes.set_yscale('symlog', linthresh=0.01)
    axes.set_ylim(bottom=-0.003)
    figures.label(axes, 'later writes', 'left of the vector')
    figure.legend(loc='outside right upper', fontsize=8)
    figures.save(figure, path)
    return figure


def main() -> None:
    """Runs the command."""
    parser = make_parser(__doc__)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--tau', type=float, default=0.5)
    parser.add_argument('--width', type=float, default=0.05)
    add_seeds(parser, '8', 'of the random kinds')
    options = parser.parse_args()
    rows = [('none', 0.0, options.width)]
    rows += [
        (kind, share, options.width)
        for share in (0.02, 0.125, 0.5)
        for kind in continuous.STICKY
        if kind != 'none'
    ]
    rows += [('quantile', 0.25, width) for width in WIDER]
    print(table(rows, options.tau, options.seeds))
    draw(rows, options.tau, options.seeds, options.output)
    found = numbers(rows, options.tau, options.seeds)
    provenance.save(options.output.with_suffix('.json'), found, options.seeds)


if __name__ == '__main__':
    main()
