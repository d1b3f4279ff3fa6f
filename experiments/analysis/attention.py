r"""What every head of a layer attends to in a text: a figure of heads by positions, and the weights.

python -m experiments.analysis.attention --config=configs/NAME.py[:variant] --workdir=DIR \
    --text=@FILE --layer=3 --output=attention.png [--segment=-1] [--query=-1]

Reads the text with the newest checkpoint up to the segment `--segment` (from 0; -1 = the last full one)
and shows the weights of its queries, or of one of them (`--query`), for every attention of the layer:
`--layer=3` is the fourth block; a wrong one gets a list of the paths, such as `encoder/layer_0`.
Columns are in the order of the keys: cache or slots, then the segment; of a memory of entries the k that
each query retrieved, nearest first. OUTPUT with the ending `.npz` holds all weights. Attention without a
softmax over keys, or within learned spans, has no such weights and is refused.
"""

import re
from pathlib import Path
from typing import Any

import jax
import matplotlib.figure
import numpy as np
from absl import flags

from experiments.analysis.reading import full_segments, one_lane
from longmem_jax import files
from longmem_jax.attention.attend import Look
from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.text import read_prompt
from longmem_jax.models.inspect import looks
from longmem_jax.models.kinds import KINDS
from longmem_jax.reporting import figures

if __name__ == '__main__':
    _TEXT = flags.DEFINE_string('text', '', 'Text, or @FILE.')
    _LAYER = flags.DEFINE_string('layer', '0', 'Block from 0, or a path of modules.')
    _SEGMENT = flags.DEFINE_integer('segment', -1, 'Full segment from 0; -1 = the last.')
    _QUERY = flags.DEFINE_integer('query', -1, 'Query of the segment from 0; -1 = mean of all.')
    _OUTPUT = flags.DEFINE_string('output', 'attention.png', 'PNG to write, and its .npz.')


def chosen(paths: list[str], layer: str, attention: tuple[str, ...]) -> list[str]:
    """The paths of attentions inside of a layer.

    Args:
      paths: of all attentions of the model that have weights.
      layer: number of a block, or the beginning of a path.
      attention: `config.model.attention`, for the message.

    Raises:
      UsageError: the layer has none.
    """
    prefix = f'block_{layer}' if layer.isdecimal() else layer.strip('/')
    inside = [path for path in paths if re.fullmatch(rf'{re.escape(prefix)}([/,].*)?', path)]
    if inside:
        return inside
    raise UsageError(
        f'--layer={layer}: no attention weights there; config.model.attention = {attention}, and only '
        f'a softmax over keys has weights to show. Allowed: {", ".join(paths) or "none in this model"}.'
    )


def looks_at(
    model: Any, params: Any, inputs: np.ndarray, layer: str, segment: int = -1
) -> dict[str, Look]:
    """What a layer looks at while it reads a segment of a text.

    Args:
      model, params: a model that continues texts.
      inputs: int32 [segments, length], from the beginning of the text.
      layer: see `chosen`.
      segment: number of a segment, below 0 from the end.

    Returns:
      Path to `Look`; arrays are numpy, without the axis of the batch.

    Raises:
      UsageError: no such layer or segment, or a layer without weights.
    """
    if not -len(inputs) <= segment < len(inputs):
        raise UsageError(f'--segment={segment}: the full segments are 0 to {len(inputs) - 1}.')

    @jax.jit
    def read(params: Any, state: Any, tokens: jax.Array) -> Any:
        return model.apply(
            {'params': params}, one_lane(tokens), state, train=False, method='hidden'
        )[1]

    def look(params: Any, state: Any, tokens: jax.Array) -> dict[str, Look]:
        return looks(model, params, one_lane(tokens), state)[2]

    state = fresh_state(model, params, 1)
    abstract = jax.eval_shape(look, params, state, inputs[0])
    paths = chosen(list(abstract), layer, tuple(model.config.attention))
    for tokens in inputs[:segment]:
        state = read(params, state, tokens)
    found = jax.jit(lambda *arguments: {path: look(*arguments)[path] for path in paths})(
        params, state, inputs[segment]
    )
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], found)


def shares(look: Look) -> dict[str, np.ndarray]:
    """Mean weight of the queries on each part of the keys, float [heads], by the name of the part."""
    ends = np.cumsum([number for _, number in look.parts])
    by_part = np.split(look.weights.mean(axis=1), ends[:-1], axis=1)
    return {name: part.sum(axis=1) for (name, _), part in zip(look.parts, by_part, strict=True)}


def draw(found: dict[str, Look], title: str, query: int = -1) -> matplotlib.figure.Figure:
    """Draws heads by keys, a panel per attention, with lines between the parts of the keys.

    Args:
      found: from `looks_at`.
      title: of the figure.
      query: number of the query that is shown; -1 = the mean over all.
    """
    heads = sum(len(look.weights) for look in found.values())
    figure = figures.figure(10, 1.0 + 1.2 * len(found) + 0.22 * heads)
    figure.suptitle(title, fontsize=9)
    for (path, look), axes in zip(
        found.items(), figure.subplots(len(found), 1, squeeze=False)[:, 0], strict=True
    ):
        weights = look.weights.mean(axis=1) if query < 0 else look.weights[:, query]
        image = axes.imshow(weights, aspect='auto', cmap='magma', vmin=0, interpolation='none')
        figure.colorbar(image, ax=axes, label='weight', pad=0.01)
        start, centers = 0, {}
        for name, number in look.parts:
            if start and number:
                axes.axvline(start - 0.5, color='white', linewidth=1)
            if number:
                centers[f'{name} ({number})'] = start + (number - 1) / 2
            start += number
        axes.set_xticks(list(centers.values()), list(centers), fontsize=8)
        axes.set_yticks(range(len(weights)))
        axes.set_ylabel('head')
        axes.set_title(path, fontsize=8, loc='left')
    return figure


def save(found: dict[str, Look], path: Path) -> None:
    """Writes weights, names of columns, and entries of a memory to an `.npz`.

    For every attention there are 'PATH/weights' [heads, queries, keys] and 'PATH/columns' [keys], the
    name of the part of every key; and of a memory of entries 'PATH/entries' [heads, queries, keys].
    """
    arrays = {}
    for name, look in found.items():
        arrays[f'{name}/weights'] = look.weights
        names, numbers = zip(*look.parts, strict=True)
        arrays[f'{name}/columns'] = np.repeat(names, numbers)
        if look.entries is not None:
            arrays[f'{name}/entries'] = look.entries
    files.write_arrays(path, **arrays)


def _main(experiment: Experiment) -> None:
    model, output = experiment.evaluation_model, Path(_OUTPUT.value)
    if KINDS[model.config.kind].by_example:
        raise UsageError(
            f'config.model.kind = {model.config.kind!r}: reads pairs, not a text; for the memory tokens '
            "of 'seq2seq' there is experiments.analysis.memory_token_maps."
        )
    length = model.segment_length
    if not -1 <= _QUERY.value < length:
        raise UsageError(f'--query={_QUERY.value}: the queries of a segment are 0 to {length - 1}.')
    inputs, _ = full_segments(experiment.tokenizer, read_prompt(_TEXT.value, '--text'), length)
    params, step = experiment.restore_parameters()
    found = looks_at(model, params, inputs, _LAYER.value, _SEGMENT.value)
    for path, look in found.items():
        print(f'{path}: mean weight by head')
        for name, values in shares(look).items():
            print(f'  {name}: {" ".join(f"{value:.3f}" for value in values)}')
    output.parent.mkdir(parents=True, exist_ok=True)
    number = _SEGMENT.value % len(inputs)
    shown = 'mean of all queries' if _QUERY.value < 0 else f'query {_QUERY.value}'
    drawn = draw(found, f'segment {number}, {shown}, step {step:,}', _QUERY.value)
    figures.save(drawn, output)
    save(found, output.with_suffix('.npz'))
    print(f'figure: {output}, weights: {output.with_suffix(".npz")}')


if __name__ == '__main__':
    entry.command(_main)
