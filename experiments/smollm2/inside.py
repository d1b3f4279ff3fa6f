"""Why gates of memories stay shut in a real decoder: what they read, and what their gradients say.

A memory stands in every layer beside attention to the segment, has learned nothing, and holds what was
read so far. Of every head:
the derivative of the loss by its gate, the size of what it reads next to what attention gives, and
how much of that depends on the query at all. Then the loss with all gates at one value, and with the
gates of those heads alone for which the derivative says that the memory helps.
"""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import provenance
from experiments.smollm2 import reading
from experiments.smollm2.reading import WINDOW
from longmem_jax.data import lanes
from longmem_jax.layers import associative
from longmem_jax.segment import Segment
from longmem_jax.training.optimizer import parameter_path
from longmem_jax.training.step import score_segment

GATE = 'attention/gate'
VALUES = (0.0, 0.05, 0.27)  # of all gates
FIRST = 0.001  # gates whose derivatives are taken
CLEAR = 2.0  # standard errors of a derivative that is not noise


def rows(window: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Names to variants of `configs/host.py` and changed fields."""
    every = f',layers=0-last,segment={window}'
    fields = {'memory_size': 8192, 'memory_length': 0, 'sinks': 0}
    return {
        'memorizing': (
            f'memory=memorizing{every}',
            {f'model.memorizing.{name}': value for name, value in fields.items()},
        ),
        'infini': (f'memory=infini{every}', {}),
    }


def with_gates(params: Any, gates: Any) -> Any:
    """The parameters with other gates: layer to logits [heads]."""

    def other(path: Any, leaf: Any) -> Any:
        name = parameter_path(path)
        return gates[name] if name.endswith(GATE) else leaf

    return jax.tree.map_with_path(other, params)


def gates_of(params: Any) -> dict[str, Any]:
    """Paths of the gates, by layer, to their logits."""
    found = [(parameter_path(path), leaf) for path, leaf in jax.tree.leaves_with_path(params)]
    gates = {path: leaf for path, leaf in found if path.endswith(GATE)}
    return dict(sorted(gates.items(), key=lambda item: int(item[0].split('/')[0].split('_')[1])))


def _logit(gate: float) -> float:
    return float(np.log(max(gate, 1e-13) / (1 - gate)))


def at_gate(gates: dict[str, Any], value: float) -> dict[str, Any]:
    """All gates at one value."""
    return {path: jnp.full_like(gate, _logit(value)) for path, gate in gates.items()}


def _size(x: Any) -> Any:
    """Root mean square of the lengths of vectors [..., n, width], by what stands before n."""
    return jnp.sqrt(jnp.square(x).sum(-1).mean(-1))


def _sums(state: Any, queries: Any) -> Any:
    """What queries [batch, heads, n, head_dim] read of Infini-attention's sums, with its defaults."""
    features = associative.FEATURES['elu'][0](queries)
    by_key_head = features.reshape(
        len(features), state.pairs.matrix.shape[1], -1, features.shape[3]
    )
    return associative.read(state.pairs, by_key_head, 'sum', 'clamp', 1e-6).reshape(features.shape)


class Looks:
    """The compiled looks at one grafted host."""

    def __init__(self, trainer: Any):
        model = trainer.shared.model

        def score(gates: Any, params: Any, memory: Any, batch: Any) -> Any:
            params = with_gates(params, gates)
            memory, (sums, _, _) = score_segment(
                model, params, memory, batch, jax.random.key(0), train=False
            )
            return sums['nll'] / sums['scored'], memory

        def sizes(params: Any, memory: Any, batch: Any) -> Any:
            _, found = model.apply(
                {'params': params},
                Segment(batch.tokens, batch.valid, batch.start),
                memory,
                train=False,
                method='hidden',
                mutable=['intermediates'],
                capture_intermediates=lambda module, method: (
                    method == 'retrieve' or module.path[-1:] in (('query',), ('out',))
                ),
            )
            layers = {}
            for path, gate in gates_of(params).items():
                block = path.split('/')[0]
                layer = found['intermediates'][block]['attention']
                (y,), (queries,) = (
                    layer['projections'][map]['__call__'] for map in ('out', 'query')
                )
                state = memory[int(block.removeprefix('block_'))].attention
                read = layer['retrieve'][0] if 'retrieve' in layer else _sums(state, queries)
                kernel = params[block]['attention']['projections']['out']['kernel']
                mean = read.mean(-2, keepdims=True)
                share = jnp.square(read - mean).sum((-1, -2)) / jnp.square(read).sum((-1, -2))
                mapped = jnp.einsum('bhnd,hdw->bnw', read, kernel)
                gate = jax.nn.sigmoid(gate[0])  # all of a layer are alike here
                local = (y - gate * mapped) / (1 - gate)
                layers[path] = {
                    'read': _size(mapped)[0] / _size(local)[0],
                    'by_query': share[0],
                }
            return layers

        self.score = jax.jit(score)
        self.gradient = jax.jit(jax.value_and_grad(score, has_aux=True))
        self.sizes = jax.jit(sizes)


def look(options: Any, variants: str, changes: dict[str, Any], segments: int) -> dict[str, Any]:
    """All numbers of one memory, of a book that is in no training: the one of validation."""
    trainer, params = reading.begun(reading.config_of(options, variants, **changes))
    shared, looks = trainer.shared, Looks(trainer)
    length = shared.config.train.segment_length
    batches = [
        jax.tree.map(lambda leaf: leaf[0], batch)
        for (batch, _), _ in zip(
            lanes.in_order(shared.corpus('validation'), 1, length),
            range(3 * segments),
            strict=False,
        )
    ]
    warm, seen, other = (batches[part * segments :][:segments] for part in range(3))
    memory = trainer.evaluator.initial_state(params, 1)
    # Nearly shut: what a first opening does, to a model that is still the host.
    gates = at_gate(gates_of(params), FIRST)
    shut = at_gate(gates, 0.0)
    for batch in warm:
        _, memory = looks.score(shut, params, memory, batch)
    sizes = jax.device_get(looks.sizes(with_gates(params, gates), memory, seen[0]))
    slopes = []
    for batch in seen:
        (_, memory), found = looks.gradient(gates, params, memory, batch)
        by_gate = jax.tree.map(  # by the gate, not by its logit
            lambda slope, gate: slope / (jax.nn.sigmoid(gate) * jax.nn.sigmoid(-gate)), found, gates
        )
        slopes.append(np.stack([by_gate[path] for path in gates]))
    mean = np.mean(slopes, axis=0)
    error = np.std(slopes, axis=0, ddof=1) / np.sqrt(len(slopes))
    helps = {path: jnp.asarray(mean[i] < -CLEAR * error[i]) for i, path in enumerate(gates)}

    def loss(chosen: Any) -> list[float]:
        state, found = memory, []
        for batch in other:
            value, state = looks.score(chosen, params, state, batch)
            found.append(round(float(value), 4))
        return found

    def opened(value: float) -> Any:
        return {
            path: jnp.where(helps[path], _logit(value), _logit(0.0)).astype(gate.dtype)
            for path, gate in gates.items()
        }

    return {
        'segments': segments,
        'slope': np.round(mean, 5).tolist(),
        'error': np.round(error, 5).tolist(),
        'read': [round(float(sizes[path]['read']), 4) for path in gates],
        'by_query': [np.round(sizes[path]['by_query'], 3).tolist() for path in gates],
        'all': {
            str(value): loss(
                jax.tree.map(lambda gate, v=value: jnp.full_like(gate, _logit(v)), gates)
            )
            for value in VALUES
        },
        'helpful': {str(value): loss(opened(value)) for value in VALUES[1:]},
    }


def run(options: Any) -> None:
    """Every row that is not there yet."""
    window, segments = (16, 3) if options.tiny else (WINDOW, options.segments)
    for name, (variants, changes) in rows(window).items():
        path = options.output / 'inside' / f'{name}.json'
        if provenance.saved(path) or (options.rows and name not in options.rows):
            continue
        found = provenance.save(path, look(options, variants, changes, segments), [0])
        clear = np.abs(found['slope']) > CLEAR * np.asarray(found['error'])
        helps = clear & (np.asarray(found['slope']) < 0)
        print(f'{name}: {helps.sum()} of {helps.size} gates would help', flush=True)
        gc.collect()
