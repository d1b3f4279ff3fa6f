"""How many pairs a compressive memory can tell apart, as a figure.

python -m longmem_jax.analysis.capacity --output=capacity.png

Writes n pairs of normal keys and values, reads every key, and counts the reads whose nearest value is
the right one: by the number of pairs, for every rule and feature map, in heads of `--head_dims`. The
pairs come in segments of `--segment` tokens.
"""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.layers import associative
from longmem_jax.reporting import figures

if __name__ == '__main__':
    _OUTPUT = flags.DEFINE_string('output', 'capacity.png', 'The figure.')
    _HEAD_DIMS = flags.DEFINE_list('head_dims', ['32', '64', '128'], 'Sizes of a head.')
    _PAIRS = flags.DEFINE_list('pairs', ['4', '16', '64', '256', '1024'], 'Numbers of pairs.')
    _SEGMENT = flags.DEFINE_integer('segment', 16, 'Pairs written at once.', lower_bound=1)

# name -> (rule, features, normalizer)
KINDS = {
    'linear, elu': ('linear', 'elu', 'sum'),
    'delta, elu': ('delta', 'elu', 'sum'),
    'linear, unit keys': ('linear', 'normalized', 'none'),
    'delta, unit keys': ('delta', 'normalized', 'none'),
    'delta per token, unit keys': ('delta_sequential', 'normalized', 'none'),
}


def recall(kind: str, head_dim: int, pairs: int, segment: int, seed: int = 0, lanes: int = 16):
    """Share of right reads and mean cosine of what is read with its value.

    Args:
      kind: one of `KINDS`.
      head_dim, pairs, segment: sizes; the last segment may be shorter.
      seed: of keys and values.
      lanes: memories averaged over.
    """
    rule, features, normalizer = KINDS[kind]
    reading = (normalizer, 'clamp', 1e-6)
    random = np.random.default_rng([seed, head_dim, pairs])
    shape = (lanes, 1, pairs, head_dim)
    keys, values = (jnp.asarray(random.normal(size=shape), jnp.float32) for _ in range(2))
    mapped = associative.FEATURES[features][0](keys)
    memory = associative.empty(lanes, 1, head_dim, head_dim)
    write = jax.jit(associative.write, static_argnums=(3, 4, 5, 6))
    for start in range(0, pairs, segment):
        part = slice(start, start + segment)
        memory = write(memory, mapped[:, :, part], values[:, :, part], rule, *reading)
    found = associative.read(memory, mapped, *reading)[:, 0]
    wanted = values[:, 0]
    distance = (
        jnp.square(found).sum(-1)[:, :, None]
        + jnp.square(wanted).sum(-1)[:, None]
        - 2 * jnp.einsum('bid,bjd->bij', found, wanted)
    )
    right = distance.argmin(axis=-1) == jnp.arange(pairs)[None]
    norms = jnp.linalg.norm(found, axis=-1) * jnp.linalg.norm(wanted, axis=-1)
    cosine = (found * wanted).sum(-1) / jnp.maximum(norms, 1e-12)
    return float(right.mean()), float(cosine.mean())


def study(head_dims: tuple[int, ...], pairs: tuple[int, ...], segment: int):
    """`(kind, head_dim, pairs) -> (share right, cosine)` for all of them."""
    return {
        (kind, width, number): recall(kind, width, number, segment)
        for kind, width, number in itertools.product(KINDS, head_dims, pairs)
    }


def draw(found, head_dims: tuple[int, ...], pairs: tuple[int, ...], path: Path) -> None:
    """Share of right reads by the number of pairs, a panel per size of a head."""
    figure = figures.figure(3.2 * len(head_dims) + 1, 3.6)
    axes = np.atleast_1d(figure.subplots(1, len(head_dims), sharey=True))
    for own, width in zip(axes, head_dims, strict=True):
        for kind in KINDS:
            shares = [100 * found[kind, width, number][0] for number in pairs]
            own.plot(pairs, shares, marker='o', label=kind)
        own.set_xscale('log', base=2)
        own.set_xlabel('pairs')
        own.set_title(f'head_dim {width}', fontsize=10)
        own.grid(alpha=0.3)
    axes[0].set_ylabel('values recalled, %')
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=3, fontsize=8
    )
    figure.savefig(path)


def _numbers(name, values):
    if not all(value.isdigit() and int(value) for value in values):
        raise UsageError(f'--{name}={",".join(values)}: whole numbers above 0 are needed.')
    return tuple(int(value) for value in values)


def _main():
    sizes = _numbers('head_dims', _HEAD_DIMS.value)
    pairs = _numbers('pairs', _PAIRS.value)
    found = study(sizes, pairs, _SEGMENT.value)
    for (kind, width, number), (share, cosine) in found.items():
        print(f'{kind}, head_dim {width}, {number} pairs: {share:.1%} right, cosine {cosine:.2f}')
    draw(found, sizes, pairs, Path(_OUTPUT.value))
    print(_OUTPUT.value)


if __name__ == '__main__':
    entry.run(_main)
