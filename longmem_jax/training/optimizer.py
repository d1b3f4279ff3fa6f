"""Optimizers, schedules and parameter groups, all from optax."""

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from longmem_jax.contract import Group
from longmem_jax.errors import UsageError, unknown
from longmem_jax.memory.registry import LAYERS
from longmem_jax.segment import Tree
from longmem_jax.training import of_optax
from longmem_jax.training.of_optax import decay_updated

NAMES = (
    'adam', 'adamw', 'adamw_hf', 'lion', 'muon', 'adagrad', 'adafactor', 'rmsprop', 'sgd', 'nesterov',
)  # fmt: skip
# The root mean square of Muon's updates, before the rate: that of Adam's, so that one rate fits both.
MUON_SIZE = 0.2
GIVEN = 'given'  # name of an optimizer that was given as an object of optax
FROZEN = 'frozen'  # label of parameters whose group has the rate 0
SCHEDULES = ('cosine', 'linear', 'inverse_sqrt', 'constant')


def make_schedule(settings: Any, num_steps: int) -> optax.Schedule:
    """Learning rate by optimizer update: linear warm-up, then the schedule.

    Args:
      settings: `config.optimizer`; the schedule falls to `final_fraction` of the peak rate, except
        for 'constant', and for 'inverse_sqrt', which is `rate * sqrt(warmup / update)`.
      num_steps: training steps, `accumulate_steps` per update.

    Raises:
      UsageError: an unknown schedule, or one that needs a warm-up and has none.
    """
    rate, warmup = settings.learning_rate, settings.warmup_steps
    updates = max(num_steps // settings.accumulate_steps, 1)
    decay_steps, final_rate = max(updates - warmup, 1), rate * settings.final_fraction
    if settings.schedule == 'cosine':
        decay = optax.cosine_decay_schedule(rate, decay_steps, alpha=settings.final_fraction)
    elif settings.schedule == 'linear':
        decay = optax.linear_schedule(rate, final_rate, decay_steps)
    elif settings.schedule == 'constant':
        decay = optax.constant_schedule(rate)
    elif settings.schedule == 'inverse_sqrt':
        if warmup < 1:
            raise UsageError(
                f"config.optimizer.warmup_steps = {warmup}: 'inverse_sqrt' needs at least 1."
            )
        decay = lambda count: rate * (warmup / (count + warmup)) ** 0.5  # noqa: E731
    else:
        raise UsageError(unknown('config.optimizer.schedule', settings.schedule, SCHEDULES))
    if not warmup:
        return decay
    rise = optax.linear_schedule(rate / warmup, rate, max(warmup - 1, 1))
    return optax.join_schedules([rise, decay], [warmup])


def updates_made(state: Any) -> jax.Array:
    """Optimizer updates so far, int32 scalar: what the schedule counts.

    Steps that only accumulate gradients, or that are skipped, are not among them.
    """

    def counts(node: Any) -> bool:
        return isinstance(node, optax.ScaleByScheduleState)

    # Every optimizer of a run has a schedule, and all of them count the same updates.
    return next(node.count for node in jax.tree.leaves(state, is_leaf=counts) if counts(node))


def parameter_path(path: Any) -> str:
    """A key path as text: 'block_0/attention/projections/query/kernel'."""
    return '/'.join(str(getattr(key, 'key', key)) for key in path)


def parameter_groups(groups: Sequence[Group], params: Any) -> Any:
    """The group of every parameter: index of the first pattern found in its path, -1 = none.

    Args:
      groups: `config.optimizer.groups`, tuples (pattern, rate multiplier, weight decay), with the
        name of another optimizer as an optional fourth. A rate of 0 freezes, see `freeze`.

    Raises:
      UsageError: a pattern that is not a regular expression or that matches no parameter.
    """
    try:
        patterns = [re.compile(pattern) for pattern, _, _, *_ in groups]
        if any(
            len(group) > 4 or not set(group[3:]) <= set(NAMES)  # lists, if read from config.json
            for group in groups
        ):
            raise ValueError(f'optimizers are {", ".join(NAMES)}')
        if not all(
            isinstance(rate, int | float) and 0 <= rate < math.inf for _, rate, *_ in groups
        ):
            raise ValueError('a rate multiplier is a number of at least 0')
    except (re.error, ValueError, TypeError) as error:
        raise UsageError(
            f'config.optimizer.groups = {groups}: tuples (path pattern, rate multiplier, weight '
            f'decay True or False[, optimizer]) are needed ({error}).'
        ) from error

    def group_of(path: Any, leaf: Any) -> int:
        name = parameter_path(path)
        return next((i for i, pattern in enumerate(patterns) if pattern.search(name)), -1)

    assigned = jax.tree_util.tree_map_with_path(group_of, params)
    unused = set(range(len(groups))) - set(jax.tree.leaves(assigned))
    if unused:
        flat, _ = jax.tree_util.tree_flatten_with_path(params)
        examples = ', '.join(parameter_path(path) for path, _ in flat[:6])
        raise UsageError(
            f'config.optimizer.groups: no parameter for {[groups[i][0] for i in sorted(unused)]} '
            f'(or an earlier pattern matched them); parameters are {examples}, ...'
        )
    return assigned


def freeze(groups: Sequence[Group], params: Tree) -> Tree:
    """The parameters, without a gradient to those in a group whose rate is 0."""
    if not any(group[1] == 0 for group in groups):
        return params
    assigned = parameter_groups(groups, params)
    return jax.tree.map(
        lambda leaf, group: (
            jax.lax.stop_gradient(leaf) if group >= 0 and groups[group][1] == 0 else leaf
        ),
        params,
        assigned,
    )


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam's step as the AdamW of transformers 3 takes it.

    `sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)`: `eps` is added to the root without its
    correction, so in the first steps it weighs `1 / sqrt(1 - b2^t)` times what it does in
    `optax.adam`, 32 times in the very first.
    """

    def update(gradients: Any, state: optax.ScaleByAdamState, params: Any = None) -> Any:
        del params
        mean = optax.tree.update_moment(gradients, state.mu, b1, 1)
        square = optax.tree.update_moment(gradients, state.nu, b2, 2)
        count = state.count + 1
        size = jnp.sqrt(_left(b2, count)) / _left(b1, count)
        steps = jax.tree.map(lambda m, v: size * m / (jnp.sqrt(v) + eps), mean, square)
        return steps, optax.ScaleByAdamState(count, mean, square)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def _left(decay: float, count: jax.Array) -> jax.Array:
    """`1 - decay^count`, whose digits a float32 would lose where the power is near 1."""
    return -jnp.expm1(count * (math.log(decay) if decay else -math.inf))


def _matrix_axes(path: Any, leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
    """Which axes of a kernel are summed over, and which are its results; None if it is no kernel.

    Kernels of heads are one matrix: [d_model, heads, head_dim], and [heads, head_dim, d_model] of `out`.
    """
    name = parameter_path(path)
    if not name.endswith('kernel') or leaf.ndim not in (2, 3):
        return None
    cut = 2 if leaf.ndim == 3 and name.endswith('out/kernel') else 1
    axes = tuple(range(leaf.ndim))
    return optax.contrib.MuonDimensionNumbers(axes[:cut], axes[cut:])


def scale_by_muon(beta: float) -> optax.GradientTransformation:
    """Muon's step (Jordan, 2024), scaled to the size of Adam's (Liu et al., 2025)."""

    def sized(update: jax.Array) -> jax.Array:
        size = jnp.sqrt(jnp.mean(jnp.square(update)))
        return update * jnp.where(size > 0, MUON_SIZE / jnp.where(size > 0, size, 1.0), 0.0)

    def axes(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(_matrix_axes, params)

    return optax.chain(
        optax.contrib.scale_by_muon(beta=beta, weight_dimension_numbers=axes),
        optax.stateless(lambda updates, _: jax.tree.map(sized, updates)),
    )


def _make_base(
    name: str, settings: Any, schedule: optax.Schedule, decayed: Any
) -> optax.GradientTransformation:
    """The optimizer `name`; `decayed` marks the parameters with weight decay."""
    betas = dict(b1=settings.b1, b2=settings.b2)
    shrinks = dict(weight_decay=settings.weight_decay, mask=decayed)
    if name == 'adam':
        return optax.adam(schedule, **betas, eps=settings.eps)
    if name == 'adamw':
        return optax.adamw(schedule, **betas, eps=settings.eps, **shrinks)
    if name == 'adamw_hf':
        return optax.chain(
            scale_by_uncorrected_adam(settings.b1, settings.b2, settings.eps),
            optax.scale_by_learning_rate(schedule),
            optax.masked(decay_updated(schedule, settings.weight_decay), decayed),
        )
    if name == 'lion':
        return optax.lion(schedule, **betas, **shrinks)
    if name == 'muon':
        return optax.chain(
            scale_by_muon(settings.momentum or 0.95),
            optax.add_decayed_weights(settings.weight_decay, mask=decayed),
            optax.scale_by_learning_rate(schedule),
        )
    if name == 'adafactor':
        # optax.adafactor decays after the learning rate, so by all of `weight_decay` in every update;
        # here the rate multiplies the decay, as in adamw. Its update is already negative.
        return optax.chain(
            optax.adafactor(None, multiply_by_parameter_scale=True, clipping_threshold=1.0),
            optax.add_decayed_weights(-settings.weight_decay, mask=decayed),
            optax.scale_by_schedule(schedule),
        )
    if name == 'adagrad':  # sums begin at 0, so that the first update has the size of the rate
        return optax.chain(
            optax.scale_by_rss(initial_accumulator_value=0.0, eps=settings.eps**2),
            optax.scale_by_learning_rate(schedule),
        )
    if name == 'rmsprop':  # as PyTorch's, whose eps is added to the root
        return optax.rmsprop(schedule, decay=settings.b2, eps=settings.eps, eps_in_sqrt=False)
    if name == 'sgd':
        return optax.sgd(schedule, momentum=settings.momentum or None)
    if name == 'nesterov':
        return optax.sgd(schedule, momentum=settings.momentum, nesterov=True)
    if name in of_optax.names():
        return of_optax.make(name, settings, schedule, decayed)
    if name.rpartition('.')[2] in of_optax.NEED_MORE:
        raise UsageError(
            f'config.optimizer.name = {name!r}: needs more than the mean gradient of a batch, such as '
            'the loss itself or gradients by example; use another, such as adamw or optax.lamb.'
        )
    if name == GIVEN:
        raise UsageError(
            f'config.optimizer.name = {GIVEN!r}: the run was trained with an object of optax; call '
            'longmem_jax.train(..., optimizer=...), for what the core trains.'
        )
    said = unknown('config.optimizer.name', name, NAMES, of_optax.names())
    raise UsageError(f'{said}; or a rule of optax by its name there, such as optax.lamb')


def clip_each(limit: float) -> optax.GradientTransformation:
    """Scales the gradient of every parameter whose own norm is above `limit` down to it."""

    def clip(update: jax.Array) -> jax.Array:
        norm = jnp.sqrt(jnp.square(update).sum())
        return update * jnp.where(norm > limit, limit / jnp.where(norm > limit, norm, 1.0), 1.0)

    return optax.stateless(lambda updates, _: jax.tree.map(clip, updates))


def keep_bounded(names: Collection[str]) -> optax.GradientTransformation:
    """Clips updates so that parameters with these names stay in [0, 1]."""

    def keep(path: Any, update: jax.Array, param: jax.Array) -> jax.Array:
        if parameter_path(path).rpartition('/')[2] not in names:
            return update
        return jnp.clip(param + update, 0, 1) - param

    return optax.stateless(
        lambda updates, params: jax.tree_util.tree_map_with_path(keep, updates, params)
    )


def _restrict(tree: Any, labels: Any, name: str) -> Callable[[Any], Any]:
    """`tree` as a mask for the optimizer `name`: parameters of the others are masked out."""

    def mask(params: Any) -> Any:
        del params
        return jax.tree.map(
            lambda leaf, label: leaf if label == name else optax.MaskedNode(), tree, labels
        )

    return mask


def make_optimizer(
    settings: Any,
    num_steps: int,
    params: Any,
    given: optax.GradientTransformation | None = None,
) -> optax.GradientTransformation:
    """The whole optimizer: clipping, update, rates by group, bounds, and accumulation.

    Args:
      settings: `config.optimizer`. Biases, norms and other vectors have no weight decay, nor have
        groups that turn it off.
      given: what makes the update of the name `GIVEN`, with its own rate and weight decay.

    Raises:
      UsageError: an unknown name, or a group that matches nothing.
    """
    groups = tuple(settings.groups)
    assigned = parameter_groups(groups, params)
    decayed = jax.tree.map(
        lambda leaf, group: leaf.ndim > 1 and (group < 0 or bool(groups[group][2])),
        params,
        assigned,
    )
    schedule = make_schedule(settings, num_steps)
    names = [
        FROZEN if group[1] == 0 else group[3] if len(group) == 4 else settings.name
        for group in groups
    ]

    def label(path: Any, leaf: Any, group: int) -> str:
        name = settings.name if group < 0 else names[group]
        # Muon is for matrices; AdamW takes the others, and tables of tokens, as its author does.
        return 'adamw' if name == 'muon' and _matrix_axes(path, leaf) is None else name

    labels = jax.tree_util.tree_map_with_path(label, params, assigned)
    used = set(jax.tree.leaves(labels)) | {settings.name}

    def make_base(name: str, decayed: Any) -> optax.GradientTransformation:
        own = name == GIVEN and given is not None
        made = given if own else _make_base(name, settings, schedule, decayed)
        return made if name in NAMES else of_optax.counted(made)

    if given is not None:
        of_optax.require_updates(given, params, GIVEN)
    bases = {name: make_base(name, decayed) for name in sorted(used - {FROZEN})}
    if settings.name not in NAMES:
        of_optax.require_updates(bases[settings.name], params, settings.name)
    if all(group >= 0 and names[group] == FROZEN for group in jax.tree.leaves(assigned)):
        raise UsageError(
            f'config.optimizer.groups = {groups}: the rate of all parameters is 0, so nothing is left '
            'to learn.'
        )
    if used - {settings.name}:
        # Weight decay masks must have the structure of each optimizer's own tree.
        bases = {name: make_base(name, _restrict(decayed, labels, name)) for name in bases}
        bases[FROZEN] = optax.set_to_zero()  # which, unlike a rate of 0, keeps no moments
        transforms = [optax.multi_transform(bases, labels)]
    else:
        transforms = [bases[settings.name]]
    if settings.clip_norm:
        clip = clip_each if settings.clip_each else optax.clip_by_global_norm
        transforms.insert(0, clip(settings.clip_norm))
    if groups:
        # Adam's step does not depend on the size of gradients, so the update is what is scaled.
        rates = jax.tree.map(lambda group: 1.0 if group < 0 else float(groups[group][1]), assigned)
        transforms.append(
            optax.stateless(lambda updates, _: jax.tree.map(lambda u, r: u * r, updates, rates))
        )
    transforms.append(
        keep_bounded({name for entry in LAYERS.values() for name in entry.layer.bounded})
    )
    optimizer = optax.chain(*transforms)
    if settings.accumulate_steps > 1:
        multi = optax.MultiSteps(optimizer, settings.accumulate_steps)
        return optax.GradientTransformation(multi.init, multi.update)
    return optimizer
