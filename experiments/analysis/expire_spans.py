r"""How long each word of a text is remembered: expire-spans drawn over the text.

python -m experiments.analysis.expire_spans --config=configs/NAME.py[:variant] --workdir=DIR \
    --text=@FILE --output=spans.png [--layer=1] [--characters=1200] [--replace='OLD=NEW,OLD=NEW']

Reads the text from its beginning with the newest checkpoint of the workdir and draws its last
characters, each coloured by the span of its token, as in Fig. 8a of Sukhbaatar et al. (2021).
`--replace` draws the text again for every pair, with NEW wherever it has OLD, and prints the mean span
of OLD and of NEW (Fig. 8b, c). With OLD=OLD NEW something is inserted.
"""

import codecs
import re
from collections.abc import Sequence
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
    _REPLACE = flags.DEFINE_list('replace', [], 'OLD=NEW: draw the text with NEW for OLD, too.')
    _CHARACTERS = flags.DEFINE_integer(
        'characters', 1200, 'Number of last characters to draw.', lower_bound=1
    )


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


def replaced(text: bytes, pair: str) -> tuple[bytes, str, str]:
    """The text with NEW wherever it has OLD, and both, from 'OLD=NEW'.

    Raises:
      UsageError: another form, or a text without OLD.
    """
    old, equals, new = pair.partition('=')
    if not (old and equals and new):
        raise UsageError(f'--replace={pair}: must be OLD=NEW.')
    if old.encode() not in text:
        raise UsageError(f'--replace={pair}: the text has no {old!r}.')
    return text.replace(old.encode(), new.encode()), old, new


def span_of(words: str, characters: str, values: np.ndarray) -> float:
    """The mean of `values` [characters] over every occurrence of `words`, which must be there."""
    starts = [found.start() for found in re.finditer(re.escape(words), characters)]
    return float(np.mean([values[at : at + len(words)] for at in starts]))


def draw(panels: list[tuple[str, np.ndarray, str]]) -> matplotlib.figure.Figure:
    """Draws texts in lines of 80 characters, each on the colour of its span; the scale is logarithmic.

    Args:
      panels: every text, float [characters], spans in tokens, and a title. Line ends are arrows.
        All have one scale.
    """
    grids = []
    for characters, values, _ in panels:
        grids.append(np.full((max(-(-len(characters) // COLUMNS), 1) * COLUMNS,), np.nan))
        grids[-1][: len(values)] = np.maximum(values, 1.0)
    rows = [len(grid) // COLUMNS for grid in grids]
    figure = figures.figure(11, 0.9 * len(panels) + 0.24 * sum(rows))
    every = np.concatenate(grids)
    low, high = np.nanmin(every), np.nanmax(every)
    scale = matplotlib.colors.LogNorm(low, max(high, low * 1.01))
    places = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (characters, _, title), grid in zip(places, panels, grids, strict=True):
        image = axes.imshow(
            grid.reshape(-1, COLUMNS), norm=scale, cmap='YlOrRd', aspect='auto', alpha=0.85
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
    figure.colorbar(
        image, ax=list(places), label='span, tokens', aspect=max(sum(rows), 5), pad=0.01
    )
    return figure


def expire_spans(
    experiment: Experiment,
    text: bytes,
    output: Path,
    *,
    layer: int = -1,
    characters: int = 1200,
    replace: Sequence[str] = (),
) -> dict[str, float]:
    """Draws the spans of a text to a PNG.

    Args:
      experiment: a trained experiment.
      text: the text, read from its beginning.
      output: PNG to write.
      layer: number of the Expire-Span layer, from 0; -1 = the one whose spans vary most.
      characters: number of last characters to draw.
      replace: 'OLD=NEW', changes of the text that are drawn below it.

    Returns:
      Mean and longest span of every layer in the text, keys such as 'layer 0, mean'; for every change
      the mean span of OLD and of NEW in the layer that is drawn.

    Raises:
      UsageError: no checkpoint, no Expire-Span layer, no such layer, no text, or a change of what the
        text does not have.
    """
    if not text:
        raise UsageError('--text= is missing: a text, or @FILE.')
    changes = [replaced(text, pair) for pair in replace]
    params, _ = experiment.restore_parameters()
    tokenizer = experiment.tokenizer

    def read(text: bytes) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.concatenate([[tokenizer.begin], tokenizer.encode(text)]).astype(np.int32)
        return tokens, text_spans(experiment.evaluation_model, params, tokens)

    tokens, spans = read(text)
    if not -1 <= layer < len(spans):
        raise UsageError(f'--layer={layer}: the Expire-Span layers are 0 to {len(spans) - 1}.')
    if layer < 0:
        layer = int(spans.std(axis=1).argmax())
    shown, values = by_character(tokenizer, tokens[1:], spans[layer, 1:])
    title = (
        f'Expire-spans of layer {layer}: mean {spans[layer].mean():,.0f}, '
        f'longest {spans[layer].max():,.0f} tokens'
    )
    panels, of_words = [(shown[-characters:], values[-characters:], title)], {}
    for other, old, new in changes:
        tokens, others = read(other)
        changed, others = by_character(tokenizer, tokens[1:], others[layer, 1:])
        panels.append((changed[-characters:], others[-characters:], f'{new!r} for {old!r}'))
        of_words[f'layer {layer}, {old!r}'] = span_of(old, shown, values)
        of_words[f'layer {layer}, {new!r} for {old!r}'] = span_of(new, changed, others)
    figure = draw(panels)
    output.parent.mkdir(parents=True, exist_ok=True)
    figures.save(figure, output)
    statistics = {}
    for index, layer_spans in enumerate(spans):
        statistics[f'layer {index}, mean'] = float(layer_spans.mean())
        statistics[f'layer {index}, longest'] = float(layer_spans.max())
    return statistics | of_words


def _main(experiment: Experiment) -> None:
    statistics = expire_spans(
        experiment,
        read_prompt(_TEXT.value, '--text'),
        Path(_OUTPUT.value),
        layer=_LAYER.value,
        characters=_CHARACTERS.value,
        replace=_REPLACE.value,
    )
    for name, value in statistics.items():
        print(f'{name}: {value:,.1f} tokens')
    print(f'figure: {_OUTPUT.value}')


if __name__ == '__main__':
    entry.command(_main)
