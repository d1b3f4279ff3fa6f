r"""What a continuous memory stores and what queries attend to in it, as figures.

python -m experiments.analysis.continuous_memory --config=configs/NAME.py[:variant] --workdir=DIR \
    --text=@FILE --output=FOLDER

Reads a text through the newest checkpoint of the workdir and draws
- attention.png: attention over [0, 1] by layer (arXiv Fig. 4);
- space.png: share of the memory of each token, with and without sticky memories, and where writes
  begin (arXiv Figs. 6, 9); phrases.txt: the phrases with the largest shares;
- predictions.png: what the predictions that gain most from the memory attend to (Fig. 5);
- regression.png: error of the regression, as the model writes, against the number of basis functions.
"""

from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments.analysis import continuous_figures as figures
from experiments.analysis import memory_positions
from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.files import write
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.text import read_prompt
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.layer import InfinityFormer
from longmem_jax.memory.infinity_former.state import InfinityFormerState
from longmem_jax.memory.infinity_former.view import attention_by_head
from longmem_jax.models.inspect import capture
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import Segment

BINS = 128
CONTEXT = 16  # tokens shown on either side

if __name__ == '__main__':
    _TEXT = flags.DEFINE_string('text', '', 'Text, or @FILE.')
    _OUTPUT = flags.DEFINE_string('output', 'continuous_memory', 'Folder of the figures.')


@flax.struct.dataclass
class Reading:
    """Attention and predictions while a text was read.

    Attributes:
      mass: float32 [layers, tokens, BINS], attention of every token to the memory, summed over heads.
      written: float32 [layers, tokens, d_model], what the regression fits: gated segment by segment.
      gain: float32 [tokens], log-probability of the next token, nats, minus that with the continuous
        memories reset.
    """

    mass: np.ndarray
    written: np.ndarray
    gain: np.ndarray


def _reset_long(state: Any, fresh: Any) -> Any:
    """`state` with the continuous memories of `fresh`, and its own short-term memories."""

    def is_infinity_former(leaf: Any) -> bool:
        return isinstance(leaf, InfinityFormerState)

    def reset(old: Any, new: Any) -> Any:
        return old.replace(long=new.long) if is_infinity_former(old) else old

    return jax.tree.map(reset, state, fresh, is_leaf=is_infinity_former)


def read_text(model: LanguageModel, params: Any, tokens: np.ndarray) -> Reading:
    """Reads a text through infinity-former layers.

    Args:
      model, params: with infinity-former layers.
      tokens: int32 [n], a begin token first; only full segments are read.

    Raises:
      UsageError: a model without infinity-former, or a text shorter than two segments.
    """
    length, fresh = model.segment_length, fresh_state(model, params, 1)
    if 'infinity_former' not in model.config.attention:
        raise UsageError(
            f'config.model.attention = {tuple(model.config.attention)}: no infinity_former layer.'
        )
    if len(tokens) < 2 * length + 1:
        raise UsageError(
            f'--text: {len(tokens)} tokens; must be at least two segments of {length} and one more.'
        )

    @jax.jit
    def step(inputs: jax.Array, targets: jax.Array, state: Any) -> tuple[jax.Array, ...]:
        def attention(layer, x, state, segment):
            by_head = attention_by_head(layer, x, state, segment, BINS)[1]
            return by_head.sum(axis=1), layer.written(x)

        segment = Segment(inputs, jnp.ones(inputs.shape, bool), jnp.zeros((1,), bool))

        def read(state):
            return model.apply(
                {'params': params}, segment, targets, state, train=False, method='nll'
            )

        without, _, _ = read(_reset_long(state, fresh))
        with capture(InfinityFormer, attention) as captured:
            scores, state, _ = read(state)
        mass, written = zip(*captured, strict=True)
        return jnp.stack(mass)[:, 0], jnp.stack(written)[:, 0], (without.nll - scores.nll)[0], state

    readings, state = [], fresh
    for start in range(0, len(tokens) - length, length):
        segment = tokens[None, start : start + length + 1]
        *arrays, state = step(jnp.asarray(segment[:, :-1]), jnp.asarray(segment[:, 1:]), state)
        readings.append([np.asarray(array, np.float32) for array in arrays])
    mass, written, gain = zip(*readings, strict=True)
    return Reading(np.concatenate(mass, 1), np.concatenate(written, 1), np.concatenate(gain))


def by_segment(mass: np.ndarray, length: int) -> np.ndarray:
    """Attention summed by segment: [..., tokens, bins] to [..., segments, bins]."""
    *before, tokens, bins = mass.shape
    return mass.reshape(*before, tokens // length, length, bins).sum(axis=-2)


def predictions(
    reading: Reading, tokens: np.ndarray, model: LanguageModel, tokenizer: Any
) -> list[figures.Prediction]:
    """The three predictions that gained most from the memory, largest gain first.

    The attention is that of the last infinity-former layer; the list is empty if nothing was stored.

    Args:
      reading: of the text.
      tokens: int32 [n], the text, a begin token first.
      model: with infinity-former layers.
      tokenizer: of the tokens.
    """
    fields, length = memory_positions.fields_of(model), model.segment_length
    mass, sticky = reading.mass[-1], fields['sticky'] != 'none'
    stored = memory_positions.follow(by_segment(mass, length), fields, length, sticky)
    centres = (np.arange(BINS) + 0.5) / BINS

    def text(first: int, last: int) -> str:
        return tokenizer.decode(tokens[max(first, 0) : last]).decode('utf-8', 'replace')

    result = []
    for index in np.argsort(-reading.gain):
        owners, positions = stored[index // length]
        if not len(owners) or len(result) == 3:
            continue
        attention = mass[index] / max(mass[index].sum(), 1e-30)
        seen = []
        for bin_index in np.argsort(-attention):
            owner = owners[np.abs(positions - centres[bin_index]).argmin()]
            if all(abs(owner - other) > CONTEXT for other, _ in seen):
                seen.append((int(owner), float(attention[bin_index])))
            if len(seen) == 3:
                break
        result.append(
            figures.Prediction(
                before=text(index + 1 - 2 * CONTEXT, index + 1),
                predicted=text(index + 1, index + 2),
                gain=float(reading.gain[index]),
                attention=attention,
                seen=[(text(o - CONTEXT, o + CONTEXT + 1), share) for o, share in seen],
            )
        )
    return result


def phrases(
    shares: np.ndarray, tokens: np.ndarray, tokenizer: Any, count: int = 12
) -> list[tuple[float, int, str]]:
    """The phrases with the largest share of the memory, largest first.

    Args:
      shares: float [tokens read], from `memory_positions.spaces`.
      tokens: int32 [n], the text, a begin token first.
      tokenizer: of the tokens.
      count: most phrases.

    Returns:
      Share, number of the token with the largest share, and text of 2 CONTEXT + 1 tokens around it
      that are in no phrase before.
    """
    left, found = np.asarray(shares, np.float64).copy(), []
    while len(found) < count and left.max() > 0:
        peak = int(left.argmax())
        around = slice(max(peak - CONTEXT, 0), peak + CONTEXT + 1)
        text = tokenizer.decode(tokens[around]).decode('utf-8', 'replace')
        found.append((float(left[around].sum()), peak, ' '.join(text.split())))
        left[around] = 0.0
    return sorted(found, reverse=True)


def regression_errors(
    vectors: np.ndarray, fields: dict[str, Any], counts: tuple[int, ...]
) -> dict[str, list[float]]:
    """Relative squared errors of the model's regression, by the number of basis functions.

    The memory is written as in the layer, with its ridge, padding, widths, contraction and evenly
    spaced samples; the error is that of the signal at the vectors of a write just after it.

    Args:
      vectors: float [n, d_model], what is fitted, at least a first write.
      fields: of the layer, from `memory_positions.fields_of`.
      counts: numbers of basis functions.

    Returns:
      'first write' and, if the vectors last, 'later writes', one error per number.
    """
    length, samples, tau = (fields[name] for name in ('write_length', 'num_samples', 'tau'))
    number = memory_positions.first_length(fields)
    sizes, widths = (samples, tau, fields['ridge']), tuple(fields['widths'])
    errors: dict[str, list[float]] = {}
    for count in counts:
        rest = (count, widths, fields['padding'])
        first, _ = continuous.fit_matrices(number, *sizes, *rest)
        _, update = continuous.fit_matrices(length, *sizes, *rest)

        def signal(coefficients: np.ndarray, positions: np.ndarray, count: int = count) -> Any:
            return (
                continuous.psi64(positions, *continuous.gaussian_basis(count, widths))
                @ coefficients
            )

        places = continuous.update_positions(length, samples, tau)[samples:]
        coefficients = first.T @ vectors[:number]
        fitted = [signal(coefficients, continuous.first_positions(number)) - vectors[:number]]
        for start in range(number, len(vectors) - length + 1, length):
            new = vectors[start : start + length]
            old = signal(coefficients, np.arange(1, samples + 1) / samples)
            coefficients = update.T @ np.concatenate([old, new])
            fitted.append(signal(coefficients, places) - new)
        later = vectors[number : number + (len(fitted) - 1) * length]
        for name, parts, wanted in (
            ('first write', fitted[:1], vectors[:number]),
            ('later writes', fitted[1:], later),
        ):
            if parts:
                error = sum(np.square(part).sum() for part in parts) / np.square(wanted).sum()
                errors.setdefault(name, []).append(float(error))
    return errors


def continuous_memory(experiment: Experiment, text: bytes, output: Path) -> dict[str, Path]:
    """Draws the figures of a text.

    Args:
      experiment: a trained experiment.
      text: the text to read.
      output: folder of the figures.

    Returns:
      Name to path of every figure.

    Raises:
      UsageError: no checkpoint, or as in `read_text`.
    """
    params, _ = experiment.restore_parameters()
    tokenizer, model = experiment.tokenizer, experiment.evaluation_model
    tokens = np.concatenate([[tokenizer.begin], tokenizer.encode(text)]).astype(np.int32)
    reading = read_text(model, params, tokens)
    fields, length = memory_positions.fields_of(model), model.segment_length
    output.mkdir(parents=True, exist_ok=True)
    names = ('attention', 'space', 'predictions', 'regression')
    paths = {name: output / f'{name}.png' for name in names} | {'phrases': output / 'phrases.txt'}
    mass = by_segment(reading.mass, length)
    # In the last segment, its own tokens and those of the short-term memory are not written yet.
    written = len(reading.gain) - length - fields['memory_length']
    begins = memory_positions.write_begins(fields, written)
    borders = memory_positions.borders(fields, min(len(begins), 6))
    figures.draw_attention(mass, borders, paths['attention'])
    spaces, lines = {}, []
    for name, sticky in (('evenly sampled', False), ('sticky', True)):
        owners, positions = memory_positions.follow(mass[-1], fields, length, sticky)[-1]
        if len(owners):
            spaces[name] = memory_positions.spaces(owners, positions, len(reading.gain))
            found = phrases(spaces[name], tokens, tokenizer)
            lines += [name, *(f'  {share:.3f}  token {at}: {text}' for share, at, text in found)]
    write(paths['phrases'], ''.join(f'{line}\n' for line in lines))
    figures.draw_space(spaces, begins, paths['space'])
    best = predictions(reading, tokens, model, tokenizer)
    figures.draw_predictions(best, paths['predictions'])
    counts = tuple(len(fields['widths']) * 2**k for k in range(2, 9))
    vectors = reading.written[
        -1, : memory_positions.first_length(fields) + 8 * fields['write_length']
    ]
    errors = regression_errors(vectors, fields, counts)
    figures.draw_regression(counts, errors, paths['regression'])
    return paths


def _main(experiment: Experiment) -> None:
    if not _TEXT.value:
        raise UsageError('--text= is missing: a text, or @FILE.')
    paths = continuous_memory(experiment, read_prompt(_TEXT.value, '--text'), Path(_OUTPUT.value))
    for name, path in paths.items():
        print(f'{name}: {path}')


if __name__ == '__main__':
    entry.command(_main)
