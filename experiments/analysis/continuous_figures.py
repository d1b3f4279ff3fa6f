"""Figures of a continuous memory; `continuous_memory` computes what they show.

Every function writes a PNG and returns the figure.
"""

import dataclasses
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from longmem_jax.reporting import figures


@dataclasses.dataclass
class Prediction:
    """What one prediction attended to.

    Attributes:
      before, predicted: text before the token, and the token.
      gain: log-probability gained from the continuous memory, nats.
      attention: float [bins], the share of every bin.
      seen: texts at the positions with most attention, and the shares of their bins.
    """

    before: str
    predicted: str
    gain: float
    attention: np.ndarray
    seen: list[tuple[str, float]]


@dataclasses.dataclass
class Utterance:
    """What an utterance attended to.

    Attributes:
      text: its speaker and what was said.
      shares: float [tokens before it], the share of attention that each token has.
      document: tokens of the document, with which the text begins.
      seen: the excerpts with most attention, and their shares.
    """

    text: str
    shares: np.ndarray
    document: int
    seen: list[tuple[str, float]]


def _figure(rows: int, height: float) -> tuple[Figure, np.ndarray]:
    """A figure and the axes of its `rows` panels."""
    figure = figures.figure(7, height)
    return figure, np.atleast_1d(figure.subplots(rows, 1, sharex=rows > 1))


def _plain(text: str) -> str:
    """Text on one line, without characters that matplotlib would interpret."""
    shown = ''.join(c if c.isprintable() and c.isascii() else ' ' for c in text)
    return ' '.join(shown.split()).replace('$', r'\$')


def draw_attention(mass: np.ndarray, borders: list[float], path: Path) -> Figure:
    """Draws attention over the memory by layer; `mass` [layers, segments, bins], `borders` dashed."""
    figure, panels = _figure(len(mass), 1.2 + 1.3 * len(mass))
    bins = mass.shape[2]
    centres = (np.arange(bins) + 0.5) / bins
    for layer, axes in enumerate(panels):
        attention = mass[layer].sum(axis=0)
        axes.bar(centres, attention / max(attention.sum(), 1e-30), width=1 / bins)
        for border in borders:
            axes.axvline(border, color='grey', linestyle='--', linewidth=0.7)
        axes.set_ylabel(f'layer {layer}')
    panels[-1].set_xlabel('position in memory: old to new')
    figure.suptitle('Attention over the continuous memory', fontsize=10)
    figures.save(figure, path)
    return figure


def draw_space(spaces: dict[str, np.ndarray], begins: list[int], path: Path) -> Figure:
    """Draws the share of the memory that each part of a text occupies.

    Args:
      spaces: name of the sampling to the share of every token, float [tokens].
      begins: tokens with which writes begin, dashed.
      path: PNG to write.
    """
    figure, (axes,) = _figure(1, 3.6)
    for name, shares in spaces.items():
        edges = np.linspace(0, len(shares), min(len(shares), 128) + 1)
        sums = np.histogram(np.arange(len(shares)), edges, weights=shares)[0]
        axes.step(edges[:-1], sums, where='post', label=name)
    for token in begins:
        axes.axvline(token, color='grey', linestyle='--', linewidth=0.5)
    axes.set_xlabel('token of the text')
    axes.set_ylabel('share of the memory')
    if spaces:
        axes.legend()
    else:
        axes.set_title('the text is too short: nothing was stored', fontsize=9)
    figures.save(figure, path)
    return figure


def draw_predictions(predictions: list[Prediction], path: Path) -> Figure:
    """Draws what each prediction attended to, with the texts at these positions."""
    rows = max(len(predictions), 1)
    figure, panels = _figure(rows, 0.6 + 2.2 * rows)
    if not predictions:
        panels[0].set_title('the text is too short: nothing was stored', fontsize=9)
    for axes, prediction in zip(panels[: len(predictions)], predictions, strict=True):
        bins = len(prediction.attention)
        axes.bar((np.arange(bins) + 0.5) / bins, prediction.attention, width=1 / bins)
        seen = '\n'.join(f'{share:.3f}  {_plain(text)}' for text, share in prediction.seen)
        predicted = _plain(prediction.predicted) or ' '
        title = f'{_plain(prediction.before)} [{predicted}]  gain {prediction.gain:.2f} nats'
        axes.set_title(f'{title}\n{seen}', fontsize=7, loc='left', family='monospace')
        axes.set_ylabel('attention')
    panels[-1].set_xlabel('position in memory: old to new')
    figures.save(figure, path)
    return figure


def draw_utterances(utterances: list[Utterance], path: Path) -> Figure:
    """Draws which parts of the text utterances attended to; a dashed line ends the document."""
    figure, panels = _figure(len(utterances), 0.6 + 2.2 * len(utterances))
    for axes, utterance in zip(panels, utterances, strict=True):
        tokens = len(utterance.shares)
        edges = np.linspace(0, tokens, min(tokens, 128) + 1)
        axes.hist(np.arange(tokens), edges, weights=utterance.shares)
        axes.axvline(utterance.document, color='grey', linestyle='--', linewidth=0.7)
        seen = '\n'.join(f'{share:.3f}  {_plain(text)}' for text, share in utterance.seen)
        title = _plain(utterance.text)[:110]
        axes.set_title(f'{title}\n{seen}', fontsize=6, loc='left', family='monospace')
        axes.set_ylabel('attention')
    panels[-1].set_xlabel('token of the text: the document, then the conversation')
    figures.save(figure, path)
    return figure


def draw_regression(counts: tuple[int, ...], errors: dict[str, list[float]], path: Path) -> Figure:
    """Draws the error of the regression by the number of basis functions.

    Args:
      counts: numbers of basis functions.
      errors: kind of write to the relative squared error for each of them.
      path: PNG to write.
    """
    figure, (axes,) = _figure(1, 3.6)
    for name, values in errors.items():
        axes.plot(counts, values, marker='o', label=f'error, {name}')
    axes.set_xscale('log', base=2)
    figures.label(axes, 'basis functions', 'relative squared error')
    figure.legend(loc='outside upper center', ncols=3)
    figures.save(figure, path)
    return figure
