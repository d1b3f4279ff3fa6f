r"""What memory tokens are used for: reading, writing and copying by layer and head, and their maps.

python -m experiments.analysis.memory_token_maps --config=configs/NAME.py[:variant] --workdir=DIR \
    --output=maps.png [--text=@FILE]                     a language model with memory tokens
    --output=maps.png [--split=test] [--pairs=64]        an encoder with memory tokens, on pairs

For every head, averaged over all queries of the text or the pairs (maps as in Burtsev et al., 2020):

  read    weight that tokens put on memory tokens
  write   weight that memory tokens put on tokens (of the segment, and of the cache if they see it)
  copy    weight that memory tokens put on the one memory token that they see most
  sum     weight that they put on all other memory tokens; write + copy + sum = 1

In a language model with memory tokens before and after the segment, only those after it count, since
the others cannot see the segment. The figure shows these numbers by layer and head, and the last map of
the head with most of each; OUTPUT with the ending `.npz` holds the numbers, as layers x heads.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
from absl import flags

from experiments.analysis.reading import full_segments, one_lane
from longmem_jax import files
from longmem_jax.commands import entry
from longmem_jax.data.lanes import in_order
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.text import read_prompt
from longmem_jax.models.inspect import looks
from longmem_jax.reporting import figures
from longmem_jax.segment import NOTHING, Segment

if __name__ == '__main__':
    _TEXT = flags.DEFINE_string('text', '', 'Text, or @FILE; for language models.')
    _SPLIT = flags.DEFINE_string('split', 'test', 'train, validation or test; for pairs.')
    _PAIRS = flags.DEFINE_integer('pairs', 64, 'Number of pairs, the first ones.', lower_bound=1)
    _OUTPUT = flags.DEFINE_string('output', 'maps.png', 'PNG to write, and its .npz.')

PATTERNS = ('read', 'write', 'copy', 'sum')


class Map(NamedTuple):
    """The attention of one layer to and from memory tokens.

    Attributes:
      layer: number of the layer.
      weights: [batch, heads, queries, keys].
      query_is_memory: bool [queries].
      key_is_memory: bool [keys].
      counted: bool [batch, queries]; False = padding.
    """

    layer: int
    weights: np.ndarray
    query_is_memory: np.ndarray
    key_is_memory: np.ndarray
    counted: np.ndarray


def sums(attention: Map) -> dict[str, tuple[np.ndarray, int]]:
    """Sum over counted queries, float64 [heads], and their number, by `PATTERNS`.

    A pattern is left out if the attention has no such queries.
    """
    weights = np.asarray(attention.weights, np.float64)
    memory = weights[..., attention.key_is_memory]
    on_memory = memory.sum(axis=-1)
    most = memory.max(axis=-1, initial=0.0)
    by_tokens = attention.counted & ~attention.query_is_memory
    by_memory = attention.counted & attention.query_is_memory
    on_tokens = weights.sum(axis=-1) - on_memory
    values = {
        'read': (on_memory, by_tokens),
        'write': (on_tokens, by_memory),
        'copy': (most, by_memory),
        'sum': (on_memory - most, by_memory),
    }
    return {
        name: ((value * mask[:, None]).sum(axis=(0, 2)), int(mask.sum()))
        for name, (value, mask) in values.items()
        if mask.any()
    }


def means(maps: Iterator[list[Map]]) -> tuple[dict[str, np.ndarray], list[Map]]:
    """Mean of every pattern, float64 [layers, heads] (nan without such queries), and the last maps.

    Args:
      maps: for every segment or batch, the maps of all layers; a layer may have several.
    """
    totals: dict[tuple[str, int], list[Any]] = {}
    last: list[Map] = []
    for last in maps:
        for attention in last:
            for name, (value, count) in sums(attention).items():
                total = totals.setdefault((name, attention.layer), [0.0, 0])
                total[0], total[1] = total[0] + value, total[1] + count
    num_layers, num_heads = 1 + max(m.layer for m in last), last[0].weights.shape[1]
    found = {name: np.full((num_layers, num_heads), np.nan) for name in PATTERNS}
    for (name, layer), (value, count) in totals.items():
        found[name][layer] = value / count
    return found, last


def of_text(model: Any, params: Any, inputs: np.ndarray) -> Iterator[list[Map]]:
    """The maps of a language model with memory tokens, for every segment of a text.

    Args:
      model, params: with the attention 'mem_transformer' in all layers.
      inputs: int32 [segments, length], from the beginning of the text.

    Raises:
      UsageError: another model.
    """
    if {*model.config.attention} != {'mem_transformer'} or not any(model.config.around):
        raise UsageError(
            f'config.model.attention = {tuple(model.config.attention)}: has no memory tokens; needed is '
            "'mem_transformer' with 'memory_tokens' around, or the kind 'seq2seq' with an encoder that "
            'has them.'
        )
    read = jax.jit(lambda params, state, segment: looks(model, params, segment, state)[::2])
    state = fresh_state(model, params, 1)
    for tokens in inputs:
        state, found = read(params, state, one_lane(tokens))
        maps = []
        for path, look in found.items():
            names, numbers = zip(*look.parts, strict=True)
            is_memory = np.repeat(['memory tokens' in name for name in names], numbers)
            weights = np.asarray(look.weights)
            queries = weights.shape[2]
            layer = int(re.match(r'block_(\d+)/', path)[1])
            counted = np.ones((1, queries), bool)
            if names[-1].startswith('trailing'):
                leading = np.repeat([name.startswith('leading') for name in names], numbers)
                counted[0] = ~leading[-queries:]
            maps.append(Map(layer, weights, is_memory[-queries:], is_memory, counted))
        yield maps


def of_pairs(model: Any, params: Any, tokens: np.ndarray) -> list[Map]:
    """The maps of an encoder with memory tokens.

    Args:
      model, params: of the kind 'seq2seq'.
      tokens: int32 [batch, length], pairs.

    Raises:
      UsageError: the encoder has no memory tokens.
    """
    fields = model.config.seq2seq
    if not fields.num_tokens:
        raise UsageError(
            f'config.model.seq2seq.encoder = {fields.encoder!r}: has no memory tokens; allowed are '
            "'plain', 'ctrl' and 'bottleneck'."
        )

    @jax.jit
    def read(params: Any, tokens: jax.Array) -> Any:
        start = jnp.ones(tokens.shape[:1], bool)
        segment = Segment(tokens, jnp.ones(tokens.shape, bool), start)
        found = looks(model, params, segment, ())[2]
        return {path: look.weights for path, look in found.items() if path.startswith('encoder/')}

    valid = tokens[:, : fields.max_source] != NOTHING
    maps = []
    for path, weights in read(params, tokens).items():
        found = re.match(r'encoder/(sequence|memory)(?:_(\d+))?/attention(?:, call (\d+))?$', path)
        layer = int(found[2] or int(found[3] or 1) - 1)
        key_is_memory = np.arange(weights.shape[3]) < fields.num_tokens
        if found[1] == 'memory':
            query_is_memory = np.ones((fields.num_tokens,), bool)
        elif fields.encoder == 'plain':
            query_is_memory = key_is_memory
        else:
            query_is_memory = np.zeros(valid.shape[1:], bool)
        counted = np.ones((len(tokens), len(query_is_memory)), bool)
        counted[:, ~query_is_memory] = valid if (~query_is_memory).any() else True
        maps.append(Map(layer, np.asarray(weights), query_is_memory, key_is_memory, counted))
    return maps


def strongest(found: dict[str, np.ndarray]) -> dict[str, tuple[int, int]]:
    """Layer and head with the most of every pattern that exists."""
    return {
        name: tuple(int(i) for i in np.unravel_index(np.nanargmax(values), values.shape))
        for name, values in found.items()
        if not np.isnan(values).all()
    }


def draw(found: dict[str, np.ndarray], maps: list[Map]) -> matplotlib.figure.Figure:
    """Draws layers by heads of every pattern, and below it the map of its strongest head.

    White lines in a map separate memory tokens from tokens.
    """
    figure = figures.figure(3.2 * len(found), 6.4)
    panels = figure.subplots(2, len(found))
    best = strongest(found)
    for (name, values), axes, below in zip(found.items(), *panels, strict=True):
        image = axes.imshow(values, aspect='auto', cmap='magma', vmin=0, vmax=1)
        axes.set_title(name)
        axes.set_xlabel('head')
        axes.set_ylabel('layer')
        axes.set_yticks(range(len(values)))
        if name not in best:
            below.set_axis_off()
            continue
        layer, head = best[name]
        attention = next(m for m in maps if m.layer == layer and name in sums(m))
        rows = attention.counted[0]
        below.imshow(attention.weights[0, head][rows], aspect='auto', cmap='magma', vmin=0)
        borders = (below.axvline, attention.key_is_memory), (
            below.axhline, attention.query_is_memory[rows],
        )  # fmt: skip
        for line, is_memory in borders:
            for border in np.flatnonzero(np.diff(is_memory.astype(int))):
                line(border + 0.5, color='white', linewidth=0.8)
        below.set_title(f'layer {layer}, head {head}', fontsize=9)
        below.set_xlabel('keys')
        below.set_ylabel('queries')
    figure.colorbar(image, ax=panels[0], label='weight')
    return figure


def _maps(experiment: Experiment, params: Any) -> Iterator[list[Map]]:
    model = experiment.evaluation_model
    if model.config.kind != 'seq2seq':
        text = read_prompt(_TEXT.value, '--text')
        inputs, _ = full_segments(experiment.tokenizer, text, model.segment_length)
        return of_text(model, params, inputs)
    corpus = experiment.corpus(_SPLIT.value)
    count = min(_PAIRS.value, len(corpus))
    batch, _ = next(iter(in_order(corpus, count, model.segment_length)))
    return iter([of_pairs(model, params, batch.tokens[0])])


def _main(experiment: Experiment) -> None:
    output = Path(_OUTPUT.value)
    params, _ = experiment.restore_parameters()
    found, maps = means(_maps(experiment, params))
    for name, (layer, head) in strongest(found).items():
        values = found[name]
        print(
            f'{name}: mean {np.nanmean(values):.3f}, most {values[layer, head]:.3f} '
            f'(layer {layer}, head {head})'
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    figures.save(draw(found, maps), output)
    files.write_arrays(output.with_suffix('.npz'), **found)
    print(f'figure: {output}, numbers: {output.with_suffix(".npz")}')


if __name__ == '__main__':
    entry.command(_main)
