"""What a continuous memory holds and where it is looked at, as figures.

python -m longmem_jax.analysis.continuous_memory --config=configs/NAME.py[:variant] --workdir=DIR \
    --text=@FILE --output=FOLDER

Reads a text through the newest checkpoint of the workdir and draws
- attention.png: attention over [0, 1] by layer (arXiv Fig. 4);
- space.png: the space of each token, with and without sticky memories (arXiv Fig. 6);
- predictions.png: what the tokens that gain most from the continuous memory looked at (Fig. 5);
- regression.png: error of the fit against the number of basis functions (ACL Fig. 3, right); with
  `--compare=DIR,DIR` beside it the test accuracy of finished runs that differ in that number.
"""

import json
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from longmem_jax.analysis import continuous_figures as figures
from longmem_jax.analysis import memory_places
from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.text import read_prompt
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.layer import InfinityFormer, InfinityFormerState
from longmem_jax.models.inspect import capture
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import Segment

BINS = 128
AROUND = 16  # tokens shown on either side

if __name__ == '__main__':
    _TEXT = flags.DEFINE_string('text', '', 'Text, or @FILE.')
    _OUTPUT = flags.DEFINE_string('output', 'continuous_memory', 'Folder of the figures.')
    _COMPARE = flags.DEFINE_list('compare', [], 'Folders of finished runs, for their accuracy.')


@flax.struct.dataclass
class Reading:
    """What happened while a text was read.

    Attributes:
      mass: float32 [layers, tokens, BINS], where every token looked, the sum over heads.
      hidden: float32 [layers, tokens, d_model], the inputs of the layers.
      gain: float32 [tokens], nats by which the next token was likelier than it is with the
        continuous memories reset.
    """

    mass: np.ndarray
    hidden: np.ndarray
    gain: np.ndarray


def _without_long(state, fresh):
    """The state with the continuous memory of every layer reset, the short-term one as it is."""

    def own(leaf):
        return isinstance(leaf, InfinityFormerState)

    return jax.tree.map(
        lambda old, new: old.replace(long=new.long) if own(old) else old, state, fresh, is_leaf=own
    )


def read_text(model: LanguageModel, params: Any, tokens: np.ndarray) -> Reading:
    """Reads a text through infinity-former layers.

    Args:
      model, params: with infinity-former layers.
      tokens: int32 [n], a begin token first; whole segments of all but the last are read.

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
            f'--text: {len(tokens)} tokens; at least two segments of {length} and one more needed.'
        )

    @jax.jit
    def step(part, targets, state):
        def attention(layer, x, state, segment):
            return layer.attention_to_memory(x, state, segment, BINS), x

        segment = Segment(part, jnp.ones(part.shape, bool), jnp.zeros((1,), bool))

        def read(state):
            return model.apply(
                {'params': params}, segment, targets, state, train=False, method='nll'
            )

        (without, _, _), _, _ = read(_without_long(state, fresh))
        with capture(InfinityFormer, attention) as found:
            (nll, _, _), state, _ = read(state)
        mass, x = zip(*found, strict=True)
        return jnp.stack(mass)[:, 0], jnp.stack(x)[:, 0], (without - nll)[0], state

    parts, state = [], fresh
    for start in range(0, len(tokens) - length, length):
        part = tokens[None, start : start + length + 1]
        *read, state = step(jnp.asarray(part[:, :-1]), jnp.asarray(part[:, 1:]), state)
        parts.append([np.asarray(array, np.float32) for array in read])
    mass, hidden, gain = zip(*parts, strict=True)
    return Reading(np.concatenate(mass, 1), np.concatenate(hidden, 1), np.concatenate(gain))


def by_segment(mass: np.ndarray, length: int) -> np.ndarray:
    """Attention of whole segments: [..., tokens, bins] to [..., segments, bins]."""
    *before, tokens, bins = mass.shape
    return mass.reshape(*before, tokens // length, length, bins).sum(axis=-2)


def predictions(reading: Reading, tokens: np.ndarray, model: LanguageModel, tokenizer: Any):
    """The three predictions that gained most, `figures.Prediction` each, greatest gain first.

    They are read off the last infinity-former layer; none are given where nothing was stored.
    """
    settings, length = model.config.infinity_former, model.segment_length
    mass, sticky = reading.mass[-1], settings.sticky != 'none'
    found = memory_places.follow(by_segment(mass, length), settings, length, sticky)
    centres = (np.arange(BINS) + 0.5) / BINS

    def text(first, last):
        return tokenizer.decode(tokens[max(first, 0) : last]).decode('utf-8', 'replace')

    result = []
    for number in np.argsort(-reading.gain):
        owners, places = found[number // length]
        if not len(owners) or len(result) == 3:
            continue
        attention = mass[number] / max(mass[number].sum(), 1e-30)
        seen = []
        for place in np.argsort(-attention):
            owner = owners[np.abs(places - centres[place]).argmin()]
            if all(abs(owner - other) > AROUND for other, _ in seen):
                seen.append((int(owner), float(attention[place])))
            if len(seen) == 3:
                break
        result.append(
            figures.Prediction(
                before=text(number + 1 - 2 * AROUND, number + 1),
                predicted=text(number + 1, number + 2),
                gain=float(reading.gain[number]),
                attention=attention,
                seen=[(text(o - AROUND, o + AROUND + 1), share) for o, share in seen],
            )
        )
    return result


def regression_errors(
    hidden: np.ndarray, widths: tuple[float, ...], ridge: float, counts: tuple[int, ...]
) -> list[float]:
    """Relative squared error of the fit of vectors [n, d_model] for numbers of basis functions."""
    errors = []
    for number in counts:
        first, _ = continuous.fit_matrices(len(hidden), 2, 0.5, ridge, number, widths, False)
        centres, sizes = continuous.gaussian_basis(number, widths)
        places = continuous.first_positions(len(hidden))
        basis = np.exp(-0.5 * ((places[:, None] - centres) / sizes) ** 2)
        basis = basis / (sizes * np.sqrt(2 * np.pi))
        fitted = basis @ (first.T @ hidden)
        errors.append(float(np.square(fitted - hidden).sum() / np.square(hidden).sum()))
    return errors


def accuracies(workdirs: list[str]) -> dict[int, float]:
    """Test accuracy of finished runs by their number of basis functions.

    Raises:
      UsageError: a folder without results or not of an infinity-former.
    """
    found = {}
    for workdir in workdirs:
        paths = [Path(workdir) / name for name in ('results.json', 'config.json')]
        for path in paths:
            if not path.exists():
                raise UsageError(f'--compare: {path} is not there; give folders of finished runs.')
        results, config = (json.loads(path.read_text()) for path in paths)
        if 'infinity_former' not in config['model']:
            raise UsageError(f'--compare: {workdir} is not a run of an infinity-former.')
        number = config['model']['infinity_former']['num_basis']
        found.setdefault(number, []).append(results['test']['accuracy'])
    return {number: float(np.mean(found[number])) for number in sorted(found)}


def continuous_memory(
    experiment: Experiment, text: bytes, output: Path, compare: list[str]
) -> dict[str, Path]:
    """Draws the figures of a text; errors as in `read_text` and `accuracies`, and no checkpoint."""
    params, _ = experiment.restore_parameters()
    tokenizer, model = experiment.tokenizer, experiment.evaluation_model
    accuracy = accuracies(compare)
    tokens = np.concatenate([[tokenizer.begin], tokenizer.encode(text)]).astype(np.int32)
    reading = read_text(model, params, tokens)
    settings, length = model.config.infinity_former, model.segment_length
    output.mkdir(parents=True, exist_ok=True)
    names = ('attention', 'space', 'predictions', 'regression')
    paths = {name: output / f'{name}.png' for name in names}
    mass = by_segment(reading.mass, length)
    figures.draw_attention(mass, memory_places.borders(settings), paths['attention'])
    spaces = {}
    for name, sticky in (('evenly sampled', False), ('sticky', True)):
        owners, places = memory_places.follow(mass[-1], settings, length, sticky)[-1]
        if len(owners):
            spaces[name] = memory_places.spaces(owners, places, len(reading.gain))
    figures.draw_space(spaces, paths['space'])
    found = predictions(reading, tokens, model, tokenizer)
    figures.draw_predictions(found, paths['predictions'])
    widths = tuple(settings.widths)
    counts = tuple(len(widths) * 2**k for k in range(2, 9))
    rows = reading.hidden[-1, : 4 * settings.write_length]
    errors = regression_errors(rows, widths, settings.ridge, counts)
    figures.draw_regression(counts, errors, accuracy, paths['regression'])
    return paths


def _main(experiment):
    if not _TEXT.value:
        raise UsageError('--text= is missing: a text, or @FILE.')
    paths = continuous_memory(
        experiment, read_prompt(_TEXT.value), Path(_OUTPUT.value), _COMPARE.value
    )
    for name, path in paths.items():
        print(f'{name}: {path}')


if __name__ == '__main__':
    entry.command(_main)
