"""A-GEM and sparse replay of the released code of Holla et al.: every gradient, step and moment."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.lifelong import replays, schedule, steps
from longmem_jax.lifelong.methods import agem, replay
from tests.parity_systems import lifelong_stub as stub


def _plan(settings):
    """The released schedule; None = never."""
    sparse = schedule.Sparse(settings['replay_every'], settings['replay_rate'])
    if not int(sparse.every * sparse.rate / settings['batch']):
        return None
    return replays.plan(sparse, settings['batch'], replay.released()['released'])


def _reads(plan, step, rows, settings, arrays):
    """Row numbers of the replay of a step, int32 [S, rows], or None."""
    shape = None
    if plan and rows == settings['batch']:
        shape = plan.shape if (step + 1) % plan.every == 0 else None
    elif plan:
        shape = plan.last(rows, step + 1)
    given = arrays.get(f'in/read_index_{step}')
    batches, wanted = shape and shape[0], None if given is None else len(given)
    if batches != wanted:
        raise ValueError(f'step {step} replays {batches} batches, the reference {wanted}')
    return None if shape is None else jnp.asarray(given)


def check(settings, arrays):
    """Yields (name, ours, reference) for every result of the golden."""
    params = stub.read_params(arrays, 'encoder', 'linear')
    network, optimizer = stub.network(params), stub.adam_of(settings, params)
    rows = stub.rows_of(arrays['in/tokens'], arrays['in/mask'], arrays['in/labels'])
    size, end, plan = settings['batch'], settings['stream'], _plan(settings)
    projects = settings['system'] == 'agem'
    clip = settings.get('clip_norm', replay.released()['clip'])
    moved = steps.Update(params, optimizer.init(params), jnp.asarray(True), jnp.zeros(()))
    ours, lists = {}, {name: [] for name in ('stream_loss', 'replay_loss')}
    dots = {name: [] for name in ('dot', 'reference_norm_sq', 'dot_after')}
    gradient_of = jax.jit(lambda params, batch: steps.gradient_of(network, params, batch, None))
    taken = 0  # steps of the optimizer

    def record(params, gradient):
        nonlocal taken
        for name, leaf in stub.named(gradient, 'encoder', 'linear').items():
            ours[f'grad/{name}_{taken}'] = leaf
        for name, leaf in stub.named(params, 'encoder', 'linear').items():
            ours[f'out/{name}_{taken}'] = leaf
        taken += 1

    for step in range(-(-end // size)):
        numbers = step * size + jnp.arange(size)
        batch = steps.batch_of(rows, numbers, numbers < end)
        count = int(batch.there.sum())
        reads = _reads(plan, step, count, settings, arrays)
        result = gradient_of(moved.params, batch)
        ours[f'out/logits_{step}'] = result.scores[:count]
        lists['stream_loss'].append(result.loss)
        gradient = result.gradient
        if projects and reads is not None:
            losses, reference = replay.replay_gradient(network, moved.params, rows, reads, None)
            found = agem.project(gradient, reference)
            for kind, tree in (('plain', gradient), ('reference', reference)):
                for name, leaf in stub.named(tree, 'encoder', 'linear').items():
                    ours[f'grad/{kind}.{name}_{step}'] = leaf
            gradient = found.gradient
            dots['dot'].append(found.dot)
            dots['reference_norm_sq'].append(agem.product(reference, reference))
            dots['dot_after'].append(agem.product(gradient, reference))
            lists['replay_loss'].extend(losses)
        moved = steps.update(optimizer, moved.params, moved.optimizer, gradient, result.loss)
        record(moved.params, gradient)
        if not projects and reads is not None:
            moved, losses, gradient = replay.replay_step(
                network, optimizer, moved, rows, reads, clip, None
            )
            record(moved.params, gradient)
            lists['replay_loss'].extend(losses)
    ours |= {f'out/{name}': np.asarray(values) for name, values in (lists | dots).items()}
    for name, leaf in stub.named(moved.params, 'encoder', 'linear').items():
        ours[f'out/final.{name}'] = leaf
    for kind, tree in zip('mv', stub.moments(moved.optimizer), strict=True):
        for name, leaf in stub.named(tree, 'encoder', 'linear').items():
            ours[f'state/adam_{kind}.{name}'] = leaf
    test = steps.batch_of(rows, jnp.arange(end, len(rows))).rows
    scores = steps.predict_rows(network, moved.params, test, size)
    ours['out/eval_logits'] = scores
    ours['out/eval_metrics'] = stub.class_metrics(scores, test.answer)
    for name, found, reference in stub.matched(ours, arrays):
        if (
            name == 'out/dot_after'
        ):  # 0 but for rounding, so its size is that of the products before
            found = np.concatenate([found, ours['out/dot']])
            reference = np.concatenate([reference, arrays['out/dot']])
        yield name, found, reference
