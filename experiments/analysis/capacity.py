"""How many pairs an associative memory can tell apart, as a figure.

python -m experiments.analysis.capacity --output=capacity.png

Writes n normally distributed keys and values in segments of `--segment` tokens, reads every key, and
counts how often the value nearest to the result is the right one. One curve for every rule and feature
map, by the number of pairs, in heads of `--head_dims`. The numbers are beside the figure, as JSON.
"""

import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments import provenance
from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.layers import associative
from longmem_jax.reporting import figures

if __name__ == '__main__':
    _OUTPUT = flags.DEFINE_string('output', 'capacity.png', 'The figure.')
    _HEAD_DIMS = flags.DEFINE_list('head_dims', ['32', '64', '128'], 'Sizes of a head.')
    _PAIRS = flags.DEFINE_list('pairs', ['4', '16', '64', '256', '1024'], 'Numbers of pairs.')
    _SEGMENT = flags.DEFINE_integer('segment', 16, 'Pairs written at once.', lower_bound=1)

LANES = 16  # memories to average over
# name -> (rule, features, normalizer)
KINDS = {
    'linear, elu': ('linear', 'elu', 'sum'),
    'delta, elu': ('delta', 'elu', 'sum'),
    'linear, unit keys': ('linear', 'normalized', 'none'),
    'delta, unit keys': ('delta', 'normalized', 'none'),
    'delta per token, unit keys': ('delta_sequential', 'normalized', 'none'),
}


def recall(kind: str, head_dim: int, pairs: int, segment: int) -> tuple[float, float]:
    """Share of right reads, and mean cosine between what is read and the right value.

    Args:
      kind: one of `KINDS`.
      head_dim, pairs, segment: sizes; the last segment may be shorter.
    """
    rule, features, normalizer = KINDS[kind]
    options = (normalizer, 'clamp', 1e-6)
    random = np.random.default_rng([0, head_dim, pairs])
    shape = (LANES, 1, pairs, head_dim)
    keys, values = (random.normal(size=shape).astype(np.float32) for _ in range(2))
    mapped = associative.FEATURES[features][0](keys)
    memory = associative.empty(LANES, 1, head_dim, head_dim)
    write = jax.jit(associative.write, static_argnums=(3, 4, 5, 6))
    for start in range(0, pairs, segment):
        entries = slice(start, start + segment)
        memory = write(memory, mapped[:, :, entries], values[:, :, entries], rule, *options)
    read = jax.jit(associative.read, static_argnums=(2, 3, 4))(memory, mapped, *options)
    read, expected = np.asarray(read)[:, 0], values[:, 0]
    distance = (
        np.square(read).sum(-1)[:, :, None]
        + np.square(expected).sum(-1)[:, None]
        - 2 * np.einsum('bid,bjd->bij', read, expected)
    )
    right = distance.argmin(axis=-1) == np.arange(pairs)[None]
    norms = np.linalg.norm(read, axis=-1) * np.linalg.norm(expected, axis=-1)
    cosine = (read * expected).sum(-1) / np.maximum(norms, 1e-12)
    return float(right.mean()), float(cosine.mean())


Recalled = dict[tuple[str, int, int], tuple[float, float]]


def study(head_dims: tuple[int, ...], pairs: tuple[int, ...], segment: int) -> Recalled:
    """`recall` of all combinations: `(kind, head_dim, pairs) -> (share right, cosine)`."""
    return {
        (kind, head_dim, count): recall(kind, head_dim, count, segment)
        for kind, head_dim, count in itertools.product(KINDS, head_dims, pairs)
    }


def as_json(recalled: Recalled) -> dict[str, Any]:
    """Rule and features to size of a head to number of pairs to 'right' and 'cosine'."""
    found: dict[str, Any] = {}
    for (kind, head_dim, count), (share, cosine) in recalled.items():
        sizes = found.setdefault(kind, {}).setdefault(str(head_dim), {})
        sizes[str(count)] = {'right': share, 'cosine': cosine}
    return found


def draw(
    recalled: Recalled, head_dims: tuple[int, ...], pairs: tuple[int, ...], path: Path
) -> None:
    """Draws the share of right reads by the number of pairs, one panel per head size.

    Args:
      recalled: from `study`.
      head_dims, pairs: sizes to show.
      path: PNG to write.
    """
    figure = figures.figure(3.2 * len(head_dims) + 1, 3.6)
    panels = np.atleast_1d(figure.subplots(1, len(head_dims), sharey=True))
    for axes, head_dim in zip(panels, head_dims, strict=True):
        for kind in KINDS:
            shares = [100 * recalled[kind, head_dim, count][0] for count in pairs]
            axes.plot(pairs, shares, marker='o', label=kind)
        axes.set_xscale('log', base=2)
        axes.set_xlabel('pairs')
        axes.set_title(f'head_dim {head_dim}', fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel('values recalled, %')
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc='outside lower center', ncols=3, fontsize=8
    )
    figures.save(figure, path)


def _numbers(name: str, values: list[str]) -> tuple[int, ...]:
    if not all(value.isdigit() and int(value) for value in values):
        raise UsageError(
            f'--{name}={",".join(values)}: must be integers above 0, separated by commas.'
        )
    return tuple(int(value) for value in values)


def _main() -> None:
    head_dims = _numbers('head_dims', _HEAD_DIMS.value)
    pairs = _numbers('pairs', _PAIRS.value)
    recalled = study(head_dims, pairs, _SEGMENT.value)
    for (kind, head_dim, count), (share, cosine) in recalled.items():
        print(f'{kind}, head_dim {head_dim}, {count} pairs: {share:.1%} right, cosine {cosine:.2f}')
    draw(recalled, head_dims, pairs, Path(_OUTPUT.value))
    provenance.save(Path(_OUTPUT.value).with_suffix('.json'), as_json(recalled), [0])
    print(_OUTPUT.value)


if __name__ == '__main__':
    entry.run(_main)
