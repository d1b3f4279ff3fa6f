"""The small encoder and the head of the lifelong goldens, and what their checks share."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from longmem_jax.config.base import base
from longmem_jax.lifelong import rows as row_types
from longmem_jax.lifelong.network import Encoded, Network
from longmem_jax.lifelong.rows import Rows
from longmem_jax.segment import NOTHING
from longmem_jax.training.optimizer import make_optimizer

ENCODER = ('embedding.weight', 'dense.weight', 'dense.bias')
HEAD = ('weight', 'bias')


class Bag:
    """`tanh(W mean(embeddings) + b)`; the key of a text adds its first embedding to the mean."""

    def __init__(self, width, vocab=0, embedding=0):
        self.width, self._shape = width, (vocab, embedding)

    def init(self, key):
        first, second = jax.random.split(key)
        return {
            'embedding.weight': jax.random.normal(first, self._shape),
            'dense.weight': jax.random.normal(second, (self.width, self._shape[1])),
            'dense.bias': jnp.zeros((self.width,)),
        }

    def _mean(self, params, inputs):
        valid = inputs.valid[..., None]
        embedded = jnp.where(valid, params['embedding.weight'][inputs.tokens], 0)
        return embedded, embedded.sum(axis=1) / jnp.maximum(valid.sum(axis=1), 1)

    def _dense(self, params, x):
        return jnp.tanh(x @ params['dense.weight'].T + params['dense.bias'])

    def encode(self, params, inputs, key):
        del key
        embedded, mean = self._mean(params, inputs)
        tokens = self._dense(params, embedded + mean[:, None])
        return Encoded(self._dense(params, mean), tokens)

    def key_of(self, params, inputs):
        embedded, mean = self._mean(params, inputs)
        return self._dense(params, embedded[:, 0] + mean)


class Classes:
    """A linear classifier; the answer of a row is its class."""

    def __init__(self, classes=0):
        self.classes = classes

    def init(self, key, width):
        return {
            'weight': jax.random.normal(key, (self.classes, width)) * 0.5,
            'bias': jnp.zeros((self.classes,)),
        }

    def inputs(self, rows):
        return row_types.inputs(rows.tokens, rows.types)

    key_inputs = inputs

    def scores(self, params, encoded, rows):
        del rows
        return encoded.pooled @ params['weight'].T + params['bias']

    def losses(self, scores, rows):
        return optax.softmax_cross_entropy_with_integer_labels(scores, rows.answer)

    def right(self, scores, rows):
        return (scores.argmax(axis=-1) == rows.answer).astype(jnp.float32)


def network(params):
    """The network of parameters that were read."""
    return Network(Bag(len(params['encoder']['dense.bias'])), Classes())


def rows_of(tokens, mask, labels):
    """Rows of arrays of a golden; what the mask leaves out is no token."""
    tokens = np.where(mask > 0, tokens, NOTHING).astype(np.int32)
    return Rows(jnp.asarray(tokens), jnp.zeros(tokens.shape, jnp.uint8), jnp.asarray(labels))


def read_params(arrays, encoder, head):
    """{'encoder', 'head'} of `param/...` with these prefixes."""
    return {
        'encoder': {name: jnp.asarray(arrays[f'param/{encoder}.{name}']) for name in ENCODER},
        'head': {name: jnp.asarray(arrays[f'param/{head}.{name}']) for name in HEAD},
    }


def named(tree, encoder, head):
    """Leaves of a tree of parameters by the names of the golden."""
    return {
        **{f'{encoder}.{name}': leaf for name, leaf in tree['encoder'].items()},
        **{f'{head}.{name}': leaf for name, leaf in tree['head'].items()},
    }


def adam_of(settings, params):
    """The optimizer that the released code of Holla et al. uses."""
    config = base().optimizer
    given = settings.get('adam', {})
    config.update(
        name='adamw_hf',
        learning_rate=settings.get('lr', settings.get('meta_lr')),
        b1=given.get('b1', 0.9),
        b2=given.get('b2', 0.999),
        eps=given.get('eps', 1e-6),
        weight_decay=given.get('weight_decay', 0.0),
        schedule='constant',
        warmup_steps=0,
        clip_norm=0.0,
    )
    return make_optimizer(config, 1, params)


def moments(state):
    """The moments of Adam in a state of `adam_of`: trees of the parameters."""

    def found(node):
        return isinstance(node, optax.ScaleByAdamState)

    adam = next(node for node in jax.tree.leaves(state, is_leaf=found) if found(node))
    return adam.mu, adam.nu


def class_metrics(scores, labels):
    """Accuracy, and macro precision, recall and F1 over the classes that occur in the labels."""
    predicted, labels = np.asarray(scores).argmax(-1), np.asarray(labels)
    parts = []
    for name in np.unique(labels):
        hits = ((predicted == name) & (labels == name)).sum()
        precision = hits / max((predicted == name).sum(), 1)
        recall = hits / (labels == name).sum()
        total = precision + recall
        parts.append((precision, recall, 2 * precision * recall / total if total else 0.0))
    return np.asarray([(predicted == labels).mean(), *np.mean(parts, axis=0)])


def matched(ours, arrays):
    """(name, ours, reference) of every result in a golden; one without a counterpart is an error."""
    for name, reference in arrays.items():
        if name.startswith(('out/', 'grad/', 'state/')):
            yield name, ours[name], reference
