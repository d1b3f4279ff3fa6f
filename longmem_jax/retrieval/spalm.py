"""SPALM: retrieved tokens gated into the last hidden vector (Yogatama et al., 2021).

With neighbours' tokens `y_k` embedded by the tied output table: `m = sum_k softmax_k(y_k . h) y_k`,
`g = sigmoid(w_g . h)`, `z = (1 - g) m + g h`, and logits from `z`. Neighbours are looked up once, before
training, never in the document that is read. The gate starts at a half; the model is frozen or not.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors import SafetensorError
from safetensors.flax import load_file, save_file

from longmem_jax.errors import UsageError
from longmem_jax.evaluation.result import Result
from longmem_jax.experiment import Experiment
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.results import show
from longmem_jax.retrieval.datastore import Datastore, identity
from longmem_jax.retrieval.reading import SEGMENTS, Part, Reader, nll_of
from longmem_jax.retrieval.search import make_index, require_k
from longmem_jax.segment import Segment
from longmem_jax.training.optimizer import parameter_path


def combine(hidden: jax.Array, embedded: jax.Array, gate: jax.Array) -> jax.Array:
    """`z` of every token.

    Args:
      hidden: [..., d_model], the last hidden vectors.
      embedded: [..., K, d_model], output vectors of the retrieved tokens; one that was retrieved
        twice counts twice.
      gate: [d_model], w_g.

    Returns:
      Like `hidden`.
    """
    scores = jnp.einsum('...kd,...d->...k', embedded, hidden)
    found = jnp.einsum('...k,...kd->...d', jax.nn.softmax(scores, axis=-1), embedded)
    share = jax.nn.sigmoid(hidden @ gate)[..., None]
    return (1 - share) * found + share * hidden


def _table(params):
    """The output vectors of all tokens."""
    embedding = params['embedding']
    return embedding.get('out_table_0', embedding['table_0'])


def _require_plain(model_config):
    if model_config.cutoffs or model_config.d_embed != model_config.d_model:
        raise UsageError(
            "config.retrieval.kind = 'spalm': needs one table of output vectors as wide as the "
            'model (config.model.cutoffs = (), d_embed = d_model).'
        )


def _lookup(experiment: Experiment, params: Any):
    settings = experiment.config.retrieval
    store = Datastore(
        Path(settings.datastore).expanduser(), identity(experiment, params), settings.verify
    )
    require_k(settings.spalm.k, store)
    return store, make_index(settings, store, experiment.mesh)


def retrieved(part: Part, store: Any, index: Any, k: int, other_documents: bool) -> np.ndarray:
    """Tokens of the neighbours of every place, int32 [segments, lanes, length, k].

    Args:
      part: what was read.
      store, index: the datastore.
      k: neighbours.
      other_documents: leave out those from the document itself; for text of the datastore.
    """
    own = part.counted
    documents = np.broadcast_to(part.documents[:, :, None], own.shape)[own]
    _, numbers = index.search(part.keys[own], k, documents if other_documents else None)
    found = np.zeros((*own.shape, k), np.int32)
    found[own] = store.rows('values', numbers)
    return found


class _Model:
    """The model with a gate: training and scoring of parts."""

    def __init__(self, experiment: Experiment):
        self._model = experiment.evaluation_model

    def losses(self, params, gate, memory, tokens, valid, start, targets, counted, neighbours):
        """Sum of the counted nats, by the gated and by the plain model; memories after."""
        segment = Segment(tokens, valid, start)
        hidden, memory, _ = self._model.apply(
            {'params': params}, segment, memory, train=False, method='hidden'
        )
        hidden = hidden.astype(jnp.float32)
        mixed = combine(hidden, _table(params).astype(jnp.float32)[neighbours], gate)
        sums = [
            (self._model.apply({'params': params}, h, targets, method=nll_of) * counted).sum()
            for h in (mixed, hidden)
        ]
        return sums[0], (sums[1], jax.lax.stop_gradient(memory))


def train(experiment: Experiment, split: str = 'train') -> Path:
    """Trains the gate, and the model with it where it is not frozen; writes WORKDIR/spalm.

    Raises:
      UsageError: no checkpoint, no datastore of this model, or a model without one output table.
    """
    settings = experiment.config.retrieval.spalm
    _require_plain(experiment.config.model)
    params, _ = experiment.restore_parameters()
    start = params
    store, index = _lookup(experiment, params)
    progress, model = Progress(0, log_every=0), _Model(experiment)
    gate = jnp.zeros((experiment.config.model.d_model,), jnp.float32)
    trained = {'gate': gate} if settings.frozen else {'gate': gate, 'params': params}
    optimizer = optax.adam(settings.learning_rate)
    state = optimizer.init(trained)

    @jax.jit
    def step(trained, state, memory, *given):
        def loss(trained):
            own = trained.get('params', start)
            total, (plain, memory_after) = model.losses(own, trained['gate'], memory, *given)
            count = jnp.maximum(given[4].sum(), 1)
            return total / count, (plain / count, memory_after)

        (value, (plain, memory)), gradient = jax.value_and_grad(loss, has_aux=True)(trained)
        updates, state = optimizer.update(gradient, state, trained)
        return optax.apply_updates(trained, updates), state, memory, value, plain

    reader, memory, done, seen = Reader(experiment, params, split), None, 0, []
    for part in reader.parts():
        found = retrieved(part, store, index, settings.k, True)
        if memory is None:
            memory = jax.tree.map(jnp.zeros_like, reader.memory)
        for number in range(SEGMENTS):
            trained, state, memory, value, plain = step(
                trained, state, memory, *_inputs(part, found, number)
            )
            done += 1
            seen.append((float(value), float(plain)))
            if done % 50 == 0:
                mean = np.mean(seen[-50:], axis=0)
                progress.say(f'step {done:,}: {mean[0]:.4f} nats/token, model alone {mean[1]:.4f}')
            if done >= settings.num_steps:
                break
        if done >= settings.num_steps:
            break
    folder = experiment.workdir / 'spalm'
    folder.mkdir(exist_ok=True)
    flat, _ = jax.tree_util.tree_flatten_with_path(trained)
    partial = folder / 'parameters.partial'
    save_file({parameter_path(path): jnp.asarray(leaf) for path, leaf in flat}, partial)
    partial.replace(folder / 'parameters.safetensors')
    about = identity(experiment, start) | {'k': settings.k, 'frozen': settings.frozen}
    (folder / 'about.json').write_text(json.dumps(about, indent=1) + '\n')
    progress.say(f'Gate after {done:,} steps: {folder}')
    progress.close()
    return folder


def _inputs(part, found, number):
    return (
        jnp.asarray(part.tokens[number]),
        jnp.asarray(part.valid[number]),
        jnp.asarray(part.start[number]),
        jnp.asarray(part.targets[number]),
        jnp.asarray(part.counted[number], jnp.float32),
        jnp.asarray(found[number]),
    )


def evaluate(experiment: Experiment, split: str) -> dict[str, Result]:
    """Scores a split by the model alone and with the trained gate; prints a table.

    Raises:
      UsageError: no gate was trained for this checkpoint, or no datastore of it.
    """
    settings = experiment.config.retrieval.spalm
    _require_plain(experiment.config.model)
    params, step = experiment.restore_parameters()
    folder = experiment.workdir / 'spalm'
    try:
        saved = load_file(folder / 'parameters.safetensors')
        about = json.loads((folder / 'about.json').read_text())
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(
            f'{folder}: no trained gate ({error}); make one with --mode=train_spalm.'
        ) from error
    if {name: about.get(name) for name in identity(experiment, params)} != identity(
        experiment, params
    ):
        raise UsageError(f'{folder}: the gate of another model; run --mode=train_spalm again.')
    store, index = _lookup(experiment, params)
    own = params
    if not about['frozen']:
        own = jax.tree_util.tree_map_with_path(
            lambda path, leaf: saved['params/' + parameter_path(path)], params
        )
    model, progress = _Model(experiment), Progress(0, log_every=0)
    score = jax.jit(lambda memory, *given: model.losses(own, saved['gate'], memory, *given))
    reader, memory = Reader(experiment, params, split), None
    limit = experiment.config.evaluate.max_test_segments
    sums, count, num_bytes = np.zeros(3), 0, 0.0
    for part in reader.parts(limit):
        found = retrieved(part, store, index, about['k'], split == 'train')
        if memory is None:
            memory = jax.tree.map(jnp.zeros_like, reader.memory)
        for number in range(SEGMENTS):
            mixed, (plain, memory) = score(memory, *_inputs(part, found, number))
            sums[0] += float(mixed)
            sums[1] += float(plain)
        sums[2] += float(part.nll[part.counted].sum())
        count += int(part.counted.sum())
        num_bytes += float(part.num_bytes.sum())
    lanes = experiment.config.evaluate.num_lanes
    protocol = (
        f'step {step:,}, segment {experiment.config.evaluate.segment_length}, {lanes} lanes, '
        f'{count:,} tokens of {split}; K {settings.k}'
    )
    names = {split: sums[2], f'{split}, SPALM': sums[0]}
    results = {
        name: Result(split, nll, count, num_bytes, protocol, right=0, answers=0, exact=0)
        for name, nll in names.items()
    }
    progress.close()
    show(progress, results, '', {})
    return results
