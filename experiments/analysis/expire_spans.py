"""How long each word of a text is remembered: expire-spans drawn over the text.

python -m experiments.analysis.expire_spans --config=configs/NAME.py[:variant] --workdir=DIR \
    --text=@FILE --output=spans.png [--layer=1] [--characters=1200]

Reads the text from its beginning with the newest checkpoint of the workdir and draws its last
characters, each coloured by the span of its token, as in Figures 7 and 8 of Sukhbaatar et al. (2021).
"""

import codecs
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.colors
import matplotlib.figure
import numpy as np
from absl import flags

from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.text import read_prompt
from longmem_jax.memory.expire_span.layer import ExpireSpan
from longmem_jax.models.inspect import capture
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.reporting import figures
from longmem_jax.segment import Segment

COLUMNS = 80

if __name__ == '__main__':
    _TEXT = flags.DEFINE_string('text', '', 'Text, or @FILE.')
    _OUTPUT = flags.DEFINE_string('output', 'expire_spans.png', 'PNG to write.')
    _LAYER = flags.DEFINE_integer('layer', -1, 'Expire-Span layer from 0; -1 = the most varied.')
    _CHARACTERS = flags.DEFINE_integer('characters', 1200, 'Number of last characters to draw.')


def segment_spans(
    model: LanguageModel, params: Any, segment: Segment, state: Any
) -> tuple[jax.Array, Any]:
    """Spans of a segment's tokens in every Expire-Span layer, and the memories after it.

    Returns:
      Spans in tokens, float [layers, batch, length], and the state.

    Raises:
      UsageError: a model without Expire-Span.
    """

    def spans(layer, x, state, segment):
        return layer.spans(x)

    with capture(ExpireSpan, spans) as captured:
        _, state, _ = model.apply({'params': params}, segment, state, train=False, method='hidden')
    if not captured:
        raise UsageError(
            f'config.model.attention = {tuple(model.config.attention)}: has no expire_span layer.'
        )
    return jnp.stack(captured), state


def text_spans(model: LanguageModel, params: Any, tokens: np.ndarray) -> np.ndarray:
    """Spans of every token of a document, float32 [layers, n], read segment after segment.

    Args:
      model, params: with Expire-Span.
      tokens: int32 [n], a begin token first.
    """
    length, state = model.segment_length, fresh_state(model, params, 1)
    step = jax.jit(lambda segment, state: segment_spans(model, params, segment, state))
    all_spans = []
    for start in range(0, len(tokens), length):
        size = min(length, len(tokens) - start)
        padded = np.zeros((1, length), np.int32)
        padded[0, :size] = tokens[start : start + size]
        valid = np.arange(length)[None] < size
        segment = Segment(jnp.asarray(padded), jnp.asarray(valid), jnp.zeros((1,), bool))
        spans, state = step(segment, state)
        all_spans.append(np.asarray(spans, np.float32)[:, 0, :size])
    return np.concatenate(all_spans, axis=1)


def by_character(tokenizer: Any, tokens: np.ndarray, spans: np.ndarray) -> tuple[str, np.ndarray]:
    """The text of tokens, and for every character the span of its token, float [characters].

    Args:
      tokenizer: of the tokens.
      tokens: int32 [n].
      spans: float [n].
    """
    decoder = codecs.getincrementaldecoder('utf-8')(errors='replace')
    characters: list[str] = []
    values: list[float] = []
    for token, span in zip(tokens, spans, strict=True):
        text = decoder.decode(tokenizer.decode(np.asarray([token], np.int32)))
        characters += text
        values += [float(span)] * len(text)
    return ''.join(characters), np.asarray(values)


def draw(characters: str, values: np.ndarray, title: str) -> matplotlib.figure.Figure:
    """Draws lines of 80 characters, each on the colour of its span; the scale is logarithmic.

    Args:
      characters: the text; line ends are drawn as arrows.
      values: float [characters], spans in tokens.
      title: of the figure.
    """
    rows = max(-(-len(characters) // COLUMNS), 1)
    grid = np.full((rows * COLUMNS,), np.nan)
    grid[: len(values)] = np.maximum(values, 1.0)
    figure = figures.figure(11, 0.9 + 0.24 * rows)
    axes = figure.subplots()
    low, high = np.nanmin(grid), np.nanmax(grid)
    scale = matplotlib.colors.LogNorm(low, max(high, low * 1.01))
    image = axes.imshow(
        grid.reshape(rows, COLUMNS), norm=scale, cmap='YlOrRd', aspect='auto', alpha=0.85
    )
    for position, character in enumerate(characters):
        shown = {'\n': '\u21b5', '\t': '\u2192', '$': r'\$'}.get(character, character)
        axes.text(
            position % COLUMNS,
            position // COLUMNS,
            shown,
            ha='center',
            va='center',
            fontsize=7,
            family='monospace',
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axes, label='span, tokens', aspect=max(rows, 5), pad=0.01)
    return figure


def expire_spans(
    experiment: Experiment, text: bytes, output: Path, *, layer: int = -1, characters: int = 1200
) -> dict[str, float]:
    """Draws the spans of a text to a PNG.

    Args:
      experiment: a trained experiment.
      text: the text, read from its beginning.
      output: PNG to write.
      layer: number of the Expire-Span layer, from 0; -1 = the one whose spans vary most.
      characters: number of last characters to draw.

    Returns:
      Mean and longest span of every layer; keys such as 'layer 0, mean'.

    Raises:
      UsageError: no checkpoint, no Expire-Span layer, no such layer, or no text.
    """
    if not text:
        raise UsageError('--text= is missing: a text, or @FILE.')
    params, _ = experiment.restore_parameters()
    tokenizer = experiment.tokenizer
    tokens = np.concatenate([[tokenizer.begin], tokenizer.encode(text)]).astype(np.int32)
    spans = text_spans(experiment.evaluation_model, params, tokens)
    if not -1 <= layer < len(spans):
        raise UsageError(f'--layer={layer}: the Expire-Span layers are 0 to {len(spans) - 1}.')
    if layer < 0:
        layer = int(spans.std(axis=1).argmax())
    shown, values = by_character(tokenizer, tokens[1:], spans[layer, 1:])
    figure = draw(
        shown[-characters:],
        values[-characters:],
        f'Expire-spans of layer {layer}: mean {spans[layer].mean():,.0f}, '
        f'longest {spans[layer].max():,.0f} tokens',
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    figures.save(figure, output)
    statistics = {}
    for index, layer_spans in enumerate(spans):
        statistics[f'layer {index}, mean'] = float(layer_spans.mean())
        statistics[f'layer {index}, longest'] = float(layer_spans.max())
    return statistics


def _main(experiment: Experiment) -> None:
    statistics = expire_spans(
        experiment,
        read_prompt(_TEXT.value),
        Path(_OUTPUT.value),
        layer=_LAYER.value,
        characters=_CHARACTERS.value,
    )
    for name, value in statistics.items():
        print(f'{name}: {value:,.1f} tokens')
    print(f'figure: {_OUTPUT.value}')


if __name__ == '__main__':
    entry.command(_main)
