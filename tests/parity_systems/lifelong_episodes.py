"""Episodes of OML-, ANML- and MAML-ER with the choices of their release; relations by candidates."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import config_dict

from longmem_jax.config.base import base
from longmem_jax.lifelong import episodes, heads, schedule
from longmem_jax.lifelong.meta_gradient import batches, gradient, meta_gradient
from longmem_jax.lifelong.methods import anml_er, maml_er, oml_er
from longmem_jax.lifelong.network import Encoded, Network
from longmem_jax.lifelong.rows import Inputs, Rows, take
from longmem_jax.segment import NOTHING
from longmem_jax.training.optimizer import make_optimizer

# Method, settings of the release, and our part of the parameters by how a name of the golden begins.
SYSTEMS = {
    'oml_er': (oml_er, episodes.released, {'rln.encoder': 'encoder', 'pln.linear': 'head'}),
    'maml_er': (maml_er, episodes.released, {'pn.encoder': 'encoder', 'pn.linear': 'head'}),
    'anml_er': (
        anml_er,
        anml_er.released,
        {
            'pn.encoder': 'encoder',
            'pn.linear': 'head',
            'nm.encoder': 'modulator',
            'nm.linear.0': 'gate/first',
            'nm.linear.2': 'gate/second',
        },
    ),
}
SYSTEMS['oml_er_relation'] = SYSTEMS['oml_er']
# Our leaf by the end of a name.
LEAVES = {
    'embedding.weight': 'embedding',
    'dense.weight': 'dense/kernel',
    'dense.bias': 'dense/bias',
    'weight': 'kernel',
    'bias': 'bias',
}


class Bag(NamedTuple):
    """An encoder: a dense layer and tanh, of the mean of embeddings and of each of them."""

    vocab: int
    embedding: int
    width: int

    def init(self, key):
        first, second = jax.random.split(key)
        return {
            'embedding': jax.random.normal(first, (self.vocab, self.embedding)),
            'dense': heads.dense(second, self.embedding, self.width),
        }

    def encode(self, params, inputs: Inputs, key=None):
        embedded = params['embedding'][inputs.tokens]
        valid = inputs.valid[..., None]
        mean = jnp.where(valid, embedded, 0).sum(axis=1) / jnp.maximum(valid.sum(axis=1), 1)
        if key is not None:
            mean = mean * jax.random.bernoulli(key, 0.5, mean.shape) * 2
        return Encoded(*(jnp.tanh(heads.linear(params['dense'], x)) for x in (mean, embedded)))

    def key_of(self, params, inputs: Inputs):
        return self.encode(params, inputs).pooled


class Names:
    """Parameters of the golden and of this library."""

    def __init__(self, parts):
        self.parts = parts

    def _places(self, names):
        for name in names:
            start = next(start for start in self.parts if name.startswith(start + '.'))
            path = f'{self.parts[start]}/{LEAVES[name[len(start) + 1 :]]}'
            yield name, path.split('/')

    def ours(self, theirs):
        """Our parameters, from {name: array}."""
        params = {}
        for name, (*path, leaf) in self._places(theirs):
            node = params
            for part in path:
                node = node.setdefault(part, {})
            node[leaf] = jnp.asarray(theirs[name].T if leaf == 'kernel' else theirs[name])
        return params

    def theirs(self, params, names):
        """{name: array} of those of our parameters that have a name there."""
        found = {}
        for name, (*path, leaf) in self._places(names):
            node = params
            for part in (*path, leaf):
                node = node.get(part) if node is not None else None
            if node is not None:
                found[name] = node.T if leaf == 'kernel' else node
        return found


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    method, released, parts = SYSTEMS[settings.get('system', Path(settings['folder']).name)]
    names, given = Names(parts), {k[6:]: v for k, v in arrays.items() if k.startswith('param/')}
    params = names.ours(given)
    rows, head = rows_of(settings, arrays, released())
    encoder = Bag(settings['V'], settings['E'], settings['D'])
    chosen = config_dict.ConfigDict(
        method.METHOD.settings
        | dict(
            updates=settings['updates'],
            inner_rate=settings['inner_lr'],
            write_rate=settings['write_prob'],
            replay_every=settings['replay_every'],
            replay_rate=settings['replay_rate'],
            adapt_steps=settings['updates'],
            capacity=settings['stream'],
        )
        | released()['method']
    )
    assert not method.METHOD.check(chosen)
    optimizer = base().optimizer
    adam = {k: v for k, v in settings['adam'].items() if k in optimizer}
    optimizer.update(released()['optimizer'] | adam)
    optimizer.update(learning_rate=settings['meta_lr'], schedule='constant', warmup_steps=0)
    optimizer.update(clip_norm=0.0)
    optimizer = make_optimizer(optimizer, 1, params)
    plan = method.plan(Network(encoder, head), chosen, optimizer, settings['batch'])
    stream = take(rows, np.arange(settings['stream']))
    test = take(rows, np.arange(len(rows) - settings['test'], len(rows)))
    state = jax.eval_shape(lambda: episodes.init(plan, jax.random.key(0)))
    assert jax.tree.map(jnp.shape, state.params) == jax.tree.map(jnp.shape, params)
    state = episodes.init(plan, jax.random.key(0)).replace(params=params)

    ours = {}
    state, counts = train(plan, state, stream, arrays, names, given, ours)
    adam = optax.tree.get(state.optimizer, 'mu'), optax.tree.get(state.optimizer, 'nu')
    for kind, moments in zip('mv', adam, strict=True):
        for name, array in names.theirs(moments, given).items():
            ours[f'state/adam_{kind}.{name}_{counts["episodes"] - 1}'] = array
    evaluate(plan, state, stream, test, arrays, names, given, ours)

    sparse = schedule.Sparse(settings['replay_every'], settings['replay_rate'])
    counts['replay_frequency'] = schedule.episodes(sparse, plan.batch, chosen.updates)
    counts['replay_steps'] = schedule.batches(sparse, plan.batch)
    for name, count in counts.items():
        if name in settings:
            yield f'config/{name}', count, settings[name]
    for name, reference in arrays.items():
        if name.split('/')[0] in ('out', 'grad', 'state'):
            yield name, like(ours[name], reference), reference


def rows_of(settings, arrays, released):
    """All rows of the golden, and their head."""
    tokens = np.where(arrays['in/mask'] > 0, arrays['in/tokens'], NOTHING)
    labels = jnp.asarray(arrays['in/labels'])
    if 'in/negatives' not in arrays:
        answer, head = labels, heads.Classes(settings['n_classes'])
    else:
        # The reference has the right one first, and logits in that order.
        candidates = np.concatenate([arrays['in/labels'][:, None], arrays['in/negatives']], axis=1)
        answer = heads.Choice(jnp.asarray(candidates), labels)
        mask = arrays['in/relation_mask'] > 0
        relations = np.where(mask, arrays['in/relation_tokens'], NOTHING)
        head = heads.Candidates(relations, **released['head'])
    return Rows(jnp.asarray(tokens), jnp.zeros(tokens.shape, jnp.uint8), answer), head


def train(plan, state, stream, arrays, names, given, ours):
    """Learns the stream with the draws of the golden; adds what came out of each episode to `ours`.

    Returns:
      The state at the end, and what was counted.
    """
    of_memory = jax.jit(lambda *a: episode(plan, *a, replays=True))
    of_stream = jax.jit(lambda *a: episode(plan, *a, replays=False))
    number, replayed = 0, []
    while int(state.position) < len(stream):
        due = bool(episodes._due(plan, state))
        if due and f'in/query_index_{number}' in arrays:
            drawn = jnp.asarray(arrays[f'in/query_index_{number}'])
        else:
            drawn = jnp.zeros(episodes._replay_shape(plan), jnp.int32)
        support, query = episodes._numbers(plan, state)
        state, metrics, found = (of_memory if due else of_stream)(state, stream, drawn)
        if not int(metrics['updates']):
            continue
        grads, fast, read, asked = found
        there, query = support < len(stream), drawn if due else query
        for kind, numbers, result in (('support', support, read), ('query', query, asked)):
            there = numbers < len(stream)
            index = arrays.get(f'in/{kind}_index_{number}')
            if index is not None and index.shape == numbers.shape:
                assert (np.where(there, numbers, index) == index).all()
            ours[f'out/{kind}_loss_{number}'] = result.loss
            ours[f'out/{kind}_logits_{number}'] = (result.scores, there)
        for prefix, tree in (('grad/', grads), ('out/fast.', fast), ('out/', state.params)):
            for name, array in names.theirs(tree, given).items():
                ours[f'{prefix}{name}_{number}'] = array
        if due:
            replayed.append(number)
        number += 1
    counts = dict(episodes=number, memory_size=int(state.memory.size), replay_episodes=replayed)
    return state, counts


def episode(plan, state, stream, drawn, *, replays):
    """One episode as the library learns it, and all that it computes on the way."""
    every = jnp.ones((plan.settings.updates + 1, plan.batch), bool)
    memory = episodes.write_support(plan, state, len(stream), every)
    there = jnp.asarray(True)
    new, metrics = episodes.learn(plan, state, stream, every, memory, drawn, there)
    support, query = episodes._numbers(plan, state)
    if replays:
        query = episodes.replay_batches(plan, stream, drawn)
    else:
        query = batches(stream, query, query < len(stream))
    found = meta_gradient(
        plan.network,
        state.params,
        state.own,
        batches(stream, support, support < len(stream)),
        lambda params: gradient(plan.network, params, state.own, query),
        plan.inner,
    )
    return new, metrics, found


def evaluate(plan, state, stream, test, arrays, names, given, ours):
    """Adds what the test gave to `ours`."""
    drawn = jnp.asarray(arrays['in/eval_support_index'])
    params, read = jax.jit(lambda: episodes.adapt(plan, state, stream, drawn, jnp.asarray(True)))()
    ours['out/eval_support_loss'] = read.loss
    for name, array in names.theirs(params, given).items():
        ours[f'out/eval_fast.{name}'] = array
    scores = jax.jit(lambda: episodes.scores(plan, state.own | params, test))()
    ours['out/eval_logits'] = scores
    head = plan.network.head
    starts = range(0, len(test), plan.batch)
    parts = [np.arange(at, min(at + plan.batch, len(test))) for at in starts]
    ours['out/eval_loss'] = jnp.stack(
        [head.losses(scores[part], take(test, part)).mean() for part in parts]
    )
    if isinstance(head, heads.Candidates):
        counted = released_rows(len(test), plan.batch)
        ours['out/eval_metrics'] = np.asarray(head.right(scores, test))[counted].mean()[None]
    else:
        found, labels = np.asarray(scores).argmax(axis=1), np.asarray(test.answer)
        ours['out/eval_metrics'] = macro(found, labels)


def released_rows(count, batch):
    """The test rows in the released accuracy of relations, bool [count].

    The last row of every batch is left out, unless it is the only one.
    """
    numbers = np.arange(count)
    last = (numbers % batch == batch - 1) | (numbers == count - 1)
    return ~last | (numbers % batch == 0)


def macro(found, labels):
    """Accuracy, and precision, recall and F1 as means over the classes of the labels."""
    each = []
    for label in np.unique(labels):
        both = ((found == label) & (labels == label)).sum()
        parts = (found == label).sum(), (labels == label).sum()
        precision, recall = (both / part if part else 0.0 for part in parts)
        total = precision + recall
        each.append((precision, recall, 2 * precision * recall / total if total else 0.0))
    return np.asarray([(found == labels).mean(), *np.mean(each, axis=0)])


def like(ours, reference):
    """Our array in the shape of the reference; of batches that are not full, the rows that are there."""
    if isinstance(ours, tuple):
        ours, there = (np.asarray(array) for array in ours)
        if ours.size == reference.size:
            there = there.reshape(*there.shape, *[1] * (ours.ndim - 2))
            ours = np.where(there, ours, reference.reshape(ours.shape))
        else:
            ours = ours[there]
    ours = np.asarray(ours)
    return ours.reshape(reference.shape) if ours.size == reference.size else ours
