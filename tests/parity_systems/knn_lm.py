"""Datastore search, probabilities by neighbours, and their mixture with a model's."""

from pathlib import Path

import jax
import numpy as np

from longmem_jax.devices.sharding import make_mesh
from longmem_jax.retrieval import knn_lm, search


class Store:
    """Arrays instead of a datastore on disk."""

    folder = Path('arrays')

    def __init__(self, keys, values):
        self._arrays = dict(keys=keys, values=values, documents=np.zeros(len(keys), np.int32))
        self.width = keys.shape[1]

    def __len__(self):
        return len(self._arrays['keys'])

    def rows(self, name, numbers):
        return self._arrays[name][numbers]

    def blocks(self, size):
        for at in range(0, len(self), size):
            yield at, self._arrays['keys'][at : at + size]


def distribution(scores, values, vocab_size):
    """Probabilities of all tokens by the neighbours alone, float64 [..., vocab_size]."""
    weights = np.exp(knn_lm.log_weights(scores)).reshape(-1, scores.shape[-1])
    query = np.repeat(np.arange(len(weights)), weights.shape[1])
    probabilities = np.zeros((len(weights), vocab_size))
    np.add.at(probabilities, (query, np.asarray(values).reshape(-1)), weights.reshape(-1))
    return probabilities.reshape(*scores.shape[:-1], vocab_size)


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    store = Store(arrays['in/datastore_keys'], arrays['in/datastore_values'])
    index = search.Exact(store, 96, make_mesh(dict(data=-1)), 1.0)
    queries, valid = arrays['in/queries'], arrays['in/valid'] > 0
    shape, k, share = valid.shape, settings['k'], settings['lmbda']
    distances, numbers, _ = index.search(queries.reshape(-1, queries.shape[-1]), k)
    distances, numbers = distances.reshape(*shape, k), numbers.reshape(*shape, k)
    yield 'out/distances', distances, arrays['out/distances']
    yield 'out/neighbors', numbers, arrays['out/neighbors']
    values, targets = store.rows('values', numbers), arrays['in/targets']
    logits = jax.nn.log_softmax(arrays['in/lm_logits'].astype(np.float64), axis=-1)
    model = np.take_along_axis(np.asarray(logits), targets[..., None], axis=-1)[..., 0]
    yield 'out/lm_log_prob', np.where(valid, model, 0), arrays['out/lm_log_prob']
    keys = store.rows('keys', numbers)
    dots = np.einsum('blkd,bld->blk', keys, queries)
    for scores, suffix in ((-distances, ''), (-distances, '_index_distance'), (dots, '_dot')):
        log = knn_lm.log_probability(scores, values, targets)
        mixed = knn_lm.mixture([model, log], [1 - share, share])
        yield (
            f'out/knn_prob{suffix}',
            np.where(valid, np.exp(log), 0),
            arrays[f'out/knn_prob{suffix}'],
        )
        yield f'out/log_prob{suffix}', np.where(valid, mixed, 0), arrays[f'out/log_prob{suffix}']
    warm = distribution(-distances / settings['temperature'], values, settings['vocab'])
    yield 'out/temperature_knn_probs', warm, arrays['out/temperature_knn_probs']
    reference = arrays['out/temperature_log_probs']
    with np.errstate(divide='ignore'):
        mixed = np.logaddexp(np.asarray(logits) + np.log(1 - share), np.log(warm) + np.log(share))
    yield 'out/temperature_log_probs', mixed, reference
