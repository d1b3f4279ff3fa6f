"""What a continuous memory holds and where it is looked at, as figures.

python -m longmem_jax.analysis.continuous_memory --config=configs/NAME.py[:variant] --workdir=DIR \
    --text=@FILE --output=FOLDER

Reads a text through the newest checkpoint of the workdir and draws `attention.png`, attention over
[0, 1] by layer (arXiv Fig. 4), `space.png`, the space that each token of the text takes when its
places are kept as they are drawn, with and without sticky memories (Fig. 6), and `regression.png`,
the error of the fit against the number of basis functions (ACL Fig. 3, right).
"""

import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.backends.backend_agg
import matplotlib.figure
import numpy as np
from absl import app, flags, logging
from ml_collections import config_flags

from longmem_jax import checks, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, prepare_workdir
from longmem_jax.generate import fresh_state
from longmem_jax.generate_mode import read_prompt
from longmem_jax.memory import continuous
from longmem_jax.memory.infinity_former import InfinityFormer
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.segment import Segment

BINS = 128

if __name__ == '__main__':
    _CONFIG = config_flags.DEFINE_config_file('config', None, 'configs/NAME.py[:variant]')
    _WORKDIR = flags.DEFINE_string('workdir', '', 'Folder of a trained run.')
    _TEXT = flags.DEFINE_string('text', '', 'Text, or @FILE.')
    _OUTPUT = flags.DEFINE_string('output', 'continuous_memory', 'Folder of the figures.')


def read_text(model: LanguageModel, params: Any, tokens: np.ndarray):
    """Attention of every segment to the continuous memories, and the vectors written to them.

    Args:
      model, params: with infinity-former layers.
      tokens: int32 [n], a begin token first; whole segments of it are read.

    Returns:
      mass, float32 [segments, layers, BINS]; hidden, float32 [layers, tokens, d_model], the inputs
      of the layers.

    Raises:
      UsageError: a model without infinity-former, or a text shorter than two segments.
    """
    length, state = model.segment_length, fresh_state(model, params, 1)
    if 'infinity_former' not in model.config.attention:
        raise UsageError(
            f'config.model.attention = {tuple(model.config.attention)}: no infinity_former layer.'
        )
    if len(tokens) < 2 * length:
        raise UsageError(f'--text: {len(tokens)} tokens; at least two segments of {length} needed.')

    @jax.jit
    def step(part, state):
        found = []

        def listen(following, args, kwargs, context):
            if isinstance(context.module, InfinityFormer) and context.method_name == '__call__':
                layer, (x, own, segment) = context.module, args
                found.append((layer.attention_to_memory(x, own, segment, BINS), x))
            return following(*args, **kwargs)

        segment = Segment(part, jnp.ones(part.shape, bool), jnp.zeros((1,), bool))
        with nn.intercept_methods(listen):
            _, state, _ = model.apply(
                {'params': params}, segment, state, train=False, method='hidden'
            )
        mass, x = zip(*found, strict=True)
        return jnp.stack(mass)[:, 0], jnp.stack(x)[:, 0].astype(jnp.float32), state

    masses, hidden = [], []
    for start in range(0, len(tokens) - length + 1, length):
        mass, x, state = step(jnp.asarray(tokens[None, start : start + length]), state)
        masses.append(np.asarray(mass))
        hidden.append(np.asarray(x))
    return np.stack(masses), np.concatenate(hidden, axis=1)


def kept_places(mass: np.ndarray, settings: Any, sticky: bool) -> np.ndarray:
    """Which token stands at each sample of the memory after a text: Voronoi cells are their spaces.

    Follows single vectors through the updates: at every write the old signal is sampled at
    `num_samples` places and each sample is the vector nearest to it.

    Args:
      mass: float [segments, bins], attention of one layer.
      settings: the layer's sub-config.
      sticky: places by quantiles of attention, or evenly spaced.

    Returns:
      int64 [num_samples + write_length], token numbers in the order of the memory.
    """
    samples, length = settings['num_samples'], settings['write_length']
    positions = continuous.update_positions(length, samples, settings['tau'])
    owners, places = np.arange(length), continuous.first_positions(length)
    for number in range(1, len(mass)):
        wanted = np.arange(1, samples + 1) / samples
        if sticky:
            probabilities = continuous.bin_probabilities(jnp.asarray(mass[number][None]))
            wanted = np.asarray(continuous.quantile_places(probabilities, samples))[0]
        nearest = np.abs(places[None] - wanted[:, None]).argmin(axis=1)
        owners = np.concatenate([owners[nearest], number * length + np.arange(length)])
        places = positions
    return owners


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


def _figure(rows: int, height: float):
    figure = matplotlib.figure.Figure(figsize=(7, height), dpi=120, layout='constrained')
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    return figure, np.atleast_1d(figure.subplots(rows, 1, sharex=rows > 1))


def draw_attention(mass: np.ndarray, path: Path) -> None:
    """Attention over the memory by layer, the mean over segments; `mass` [segments, layers, bins]."""
    figure, axes = _figure(mass.shape[1], 1.2 + 1.3 * mass.shape[1])
    centres = (np.arange(mass.shape[2]) + 0.5) / mass.shape[2]
    for layer, own in enumerate(axes):
        row = mass[1:, layer].mean(axis=0)
        own.bar(centres, row / max(row.sum(), 1e-30), width=1 / mass.shape[2])
        own.set_ylabel(f'layer {layer}')
    axes[-1].set_xlabel('place in memory: old to new')
    figure.suptitle('Attention over the continuous memory', fontsize=10)
    figure.savefig(path)


def draw_space(spaces: dict[str, np.ndarray], num_tokens: int, path: Path) -> None:
    """Samples that each part of the text holds in memory, by name of the sampling."""
    figure, (own,) = _figure(1, 3.6)
    edges = np.linspace(0, num_tokens, 65)
    for name, owners in spaces.items():
        share = np.histogram(owners, edges)[0] / len(owners)
        own.step(edges[:-1], share, where='post', label=name)
    own.set_xlabel('token of the text')
    own.set_ylabel('share of the memory')
    own.legend()
    figure.savefig(path)


def draw_regression(counts: tuple[int, ...], errors: list[float], path: Path) -> None:
    """Error of the fit against the number of basis functions."""
    figure, (own,) = _figure(1, 3.6)
    own.plot(counts, errors, marker='o')
    own.set_xscale('log', base=2)
    own.set_xlabel('basis functions')
    own.set_ylabel('relative squared error')
    own.grid(alpha=0.3)
    figure.savefig(path)


def continuous_memory(experiment: Experiment, text: bytes, output: Path) -> dict[str, Path]:
    """Draws the three figures of a text; errors as in `read_text`, and no checkpoint."""
    params, _ = experiment.restore_parameters()
    tokenizer, model = experiment.tokenizer, experiment.evaluation_model
    tokens = np.concatenate([[tokenizer.begin], tokenizer.encode(text)]).astype(np.int32)
    mass, hidden = read_text(model, params, tokens)
    settings = model.config.infinity_former
    output.mkdir(parents=True, exist_ok=True)
    paths = {name: output / f'{name}.png' for name in ('attention', 'space', 'regression')}
    draw_attention(mass, paths['attention'])
    layer = int(mass[1:].sum(axis=0).std(axis=1).argmax())
    spaces = {
        name: kept_places(mass[:, layer], settings, sticky)
        for name, sticky in (('evenly sampled', False), ('sticky', True))
    }
    draw_space(spaces, hidden.shape[1], paths['space'])
    widths = tuple(settings.widths)
    counts = tuple(len(widths) * 2**k for k in range(2, 9))
    rows = hidden[layer, : 4 * settings.write_length]
    errors = regression_errors(rows, widths, settings.ridge, counts)
    draw_regression(counts, errors, paths['regression'])
    return paths


def _main(argv):
    logging.set_verbosity(logging.WARNING)
    try:
        if _CONFIG.value is None:
            raise UsageError('--config= is missing: for example --config=configs/sorting.py:tiny')
        if not _TEXT.value:
            raise UsageError('--text= is missing: a text, or @FILE.')
        checks.require_runnable(_CONFIG.value, jax.device_count())
        mesh = sharding.make_mesh(_CONFIG.value.mesh.to_dict())
        experiment = Experiment(_CONFIG.value, prepare_workdir(_WORKDIR.value), mesh)
        text = read_prompt(_TEXT.value)
        for name, path in continuous_memory(experiment, text, Path(_OUTPUT.value)).items():
            print(f'{name}: {path}')
    except UsageError as error:
        print(f'UsageError: {error}', file=sys.stderr)
        sys.exit(2)


if __name__ == '__main__':
    app.run(_main)
