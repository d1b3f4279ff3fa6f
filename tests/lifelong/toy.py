"""A bag of words that is learned from a stream, and the same written out in NumPy with float64."""

import jax.numpy as jnp
import numpy as np

from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows
from longmem_jax.segment import NOTHING
from tests.parity_systems.lifelong_stub import Bag, Classes

VOCAB, EMBEDDING, WIDTH, CLASSES, LENGTH = 17, 5, 6, 4, 4
NETWORK = Network(Bag(WIDTH, VOCAB, EMBEDDING), Classes(CLASSES))
NAMES = ('embedding.weight', 'dense.weight', 'dense.bias', 'weight', 'bias')


def rows(count, seed=0):
    """Rows whose class depends on their first token; some are shorter than others."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCAB, (count, LENGTH)).astype(np.int32)
    answer = (tokens[:, 0] % CLASSES).astype(np.int32)
    tokens[np.arange(LENGTH) >= rng.integers(1, LENGTH + 1, (count, 1))] = NOTHING
    return Rows(jnp.asarray(tokens), jnp.zeros(tokens.shape, jnp.uint8), jnp.asarray(answer))


def params(seed=0):
    """Parameters, float32."""
    rng = np.random.default_rng(seed)
    shapes = ((VOCAB, EMBEDDING), (WIDTH, EMBEDDING), (WIDTH,), (CLASSES, WIDTH), (CLASSES,))
    made = [jnp.asarray(0.7 * rng.normal(size=shape), jnp.float32) for shape in shapes]
    return {'encoder': dict(zip(NAMES[:3], made[:3], strict=True)),
            'head': dict(zip(NAMES[3:], made[3:], strict=True))}  # fmt: skip


def plain(tree):
    """Leaves by their names, float64."""
    leaves = {**tree['encoder'], **tree['head']}
    return {name: np.asarray(leaves[name], np.float64) for name in NAMES}


def losses_and_gradient(params, rows, weights):
    """Losses [n], and the gradient of their sum weighted by `weights`, by hand."""
    tokens, labels = np.asarray(rows.tokens), np.asarray(rows.answer)
    losses, total = [], {name: np.zeros_like(leaf) for name, leaf in params.items()}
    for text, label, weight in zip(tokens, labels, weights, strict=True):
        text = text[text != NOTHING]
        mean = params['embedding.weight'][text].mean(axis=0)
        hidden = np.tanh(params['dense.weight'] @ mean + params['dense.bias'])
        logits = params['weight'] @ hidden + params['bias']
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        losses.append(-np.log(shares[label]))
        back = weight * (shares - np.eye(CLASSES)[label])
        total['weight'] += np.outer(back, hidden)
        total['bias'] += back
        back = (params['weight'].T @ back) * (1 - hidden**2)
        total['dense.weight'] += np.outer(back, mean)
        total['dense.bias'] += back
        for token in text:
            total['embedding.weight'][token] += params['dense.weight'].T @ back / len(text)
    return np.asarray(losses), total


def adapt(params, rows, steps, rate, momentum, anchor, names=NAMES):
    """Local adaptation by the formula, one step after another."""
    now = {name: leaf.copy() for name, leaf in params.items()}
    velocity = {name: np.zeros_like(leaf) for name, leaf in params.items()}
    for _ in range(steps):
        _, gradient = losses_and_gradient(now, rows, np.full(len(rows), 1 / len(rows)))
        for name in names:
            slope = gradient[name] + 2 * anchor * (now[name] - params[name])
            velocity[name] = momentum * velocity[name] + slope
            now[name] = now[name] - rate * velocity[name]
    return now
