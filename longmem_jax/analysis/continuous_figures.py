"""Drawings of a continuous memory; what they show is computed in `continuous_memory`."""

import dataclasses
from pathlib import Path

import numpy as np

from longmem_jax.reporting import figures


@dataclasses.dataclass
class Prediction:
    """What one prediction looked at.

    Attributes:
      before, predicted: text before the token, and the token.
      gain: nats by which it was likelier than without the continuous memory.
      attention: float [bins], the share of every bin.
      seen: texts at the places most looked at and the shares of their bins.
    """

    before: str
    predicted: str
    gain: float
    attention: np.ndarray
    seen: list[tuple[str, float]]


def _figure(rows: int, height: float):
    figure = figures.figure(7, height)
    return figure, np.atleast_1d(figure.subplots(rows, 1, sharex=rows > 1))


def _plain(text: str) -> str:
    """Text on one line, no character of which has a meaning to the drawing."""
    shown = ''.join(c if c.isprintable() and c.isascii() else ' ' for c in text)
    return ' '.join(shown.split()).replace('$', r'\$')


def draw_attention(mass: np.ndarray, borders: list[float], path: Path) -> None:
    """Attention over the memory by layer; `mass` [layers, segments, bins], `borders` dashed."""
    figure, axes = _figure(len(mass), 1.2 + 1.3 * len(mass))
    bins = mass.shape[2]
    centres = (np.arange(bins) + 0.5) / bins
    for layer, own in enumerate(axes):
        row = mass[layer].sum(axis=0)
        own.bar(centres, row / max(row.sum(), 1e-30), width=1 / bins)
        for border in borders:
            own.axvline(border, color='grey', linestyle='--', linewidth=0.7)
        own.set_ylabel(f'layer {layer}')
    axes[-1].set_xlabel('place in memory: old to new')
    figure.suptitle('Attention over the continuous memory', fontsize=10)
    figure.savefig(path)


def draw_space(spaces: dict[str, np.ndarray], path: Path) -> None:
    """Share of the memory that each part of the text holds, by the name of the sampling."""
    figure, (own,) = _figure(1, 3.6)
    for name, shares in spaces.items():
        edges = np.linspace(0, len(shares), min(len(shares), 128) + 1)
        parts = np.histogram(np.arange(len(shares)), edges, weights=shares)[0]
        own.step(edges[:-1], parts, where='post', label=name)
    own.set_xlabel('token of the text')
    own.set_ylabel('share of the memory')
    if spaces:
        own.legend()
    else:
        own.set_title('the text is too short: nothing was stored', fontsize=9)
    figure.savefig(path)


def draw_predictions(predictions: list[Prediction], path: Path) -> None:
    """Where each prediction looked, and the texts that stand there."""
    rows = max(len(predictions), 1)
    figure, axes = _figure(rows, 0.6 + 2.2 * rows)
    if not predictions:
        axes[0].set_title('the text is too short: nothing was stored', fontsize=9)
    for own, found in zip(axes[: len(predictions)], predictions, strict=True):
        bins = len(found.attention)
        own.bar((np.arange(bins) + 0.5) / bins, found.attention, width=1 / bins)
        seen = '\n'.join(f'{share:.3f}  {_plain(text)}' for text, share in found.seen)
        said = _plain(found.predicted) or ' '
        title = f'{_plain(found.before)} [{said}]  gain {found.gain:.2f} nats'
        own.set_title(f'{title}\n{seen}', fontsize=7, loc='left', family='monospace')
        own.set_ylabel('attention')
    axes[-1].set_xlabel('place in memory: old to new')
    figure.savefig(path)


def draw_regression(
    counts: tuple[int, ...], errors: list[float], accuracy: dict[int, float], path: Path
) -> None:
    """Error of the fit, and test accuracy where it is known, against the number of functions."""
    figure, (own,) = _figure(1, 3.6)
    own.plot(counts, errors, marker='o', label='error of the fit')
    own.set_xscale('log', base=2)
    own.set_xlabel('basis functions')
    own.set_ylabel('relative squared error')
    own.grid(alpha=0.3)
    if accuracy:
        other = own.twinx()
        shown = [100 * share for share in accuracy.values()]
        other.plot(list(accuracy), shown, marker='s', color='C1', label='accuracy')
        other.set_ylabel('test accuracy, %')
        figure.legend(loc='outside upper center', ncols=2)
    figure.savefig(path)
