"""Optimizers that are optax's own, by name or given as an object."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from longmem_jax.errors import UsageError

# They need more than the mean gradient of a batch: the loss, its function, or a gradient per example.
NEED_MORE = ('lbfgs', 'momo', 'momo_adam', 'sophia', 'dpsgd')


def decay_updated(schedule: optax.Schedule, decay: float) -> optax.GradientTransformation:
    """Takes `rate * decay` of the parameters away, after the update that is given has been made."""

    def init(params: Any) -> optax.ScaleByScheduleState:
        del params
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    def update(updates: Any, state: optax.ScaleByScheduleState, params: Any) -> Any:
        share = schedule(state.count) * decay
        updates = jax.tree.map(lambda u, p: u - share * (p + u), updates, params)
        return updates, optax.ScaleByScheduleState(state.count + 1)

    return optax.GradientTransformation(init, update)


def names() -> dict[str, Callable[..., optax.GradientTransformation]]:
    """Optimizers of optax itself by their names here, such as 'optax.lamb' and 'optax.contrib.adopt'.

    All take the learning rate first. Schedule-free ones are left out: they are to be scored with other
    parameters than those that are trained. So are those of `NEED_MORE`.
    """
    found: dict[str, Callable[..., Any]] = {}
    for where, module in (('optax', optax), ('optax.contrib', optax.contrib)):
        for name, function in vars(module).items():
            if name in NEED_MORE or name.startswith(('_', 'scale_by', 'schedule_free')):
                continue
            if inspect.isfunction(function):
                if next(iter(inspect.signature(function).parameters), '') == 'learning_rate':
                    found[f'{where}.{name}'] = function
    return found


def make(
    name: str, settings: Any, schedule: optax.Schedule, decayed: Any
) -> optax.GradientTransformation:
    """An optimizer of `names`, with the fields of `settings` that it has, then `settings.options`.

    If it has no mask for weight decay, the decay is that of `decay_updated`.
    """
    function = names()[name]
    known = inspect.signature(function).parameters
    given = {field: settings[field] for field in ('b1', 'b2', 'eps') if field in known}
    mask = next((field for field in ('mask', 'weight_decay_mask') if field in known), '')
    apart = not (mask and 'weight_decay' in known)
    if not apart:
        given |= {'weight_decay': settings.weight_decay, mask: decayed}
    elif 'weight_decay' in known:
        given |= {'weight_decay': 0.0}
    try:
        given |= dict(settings.options)
        made = function(schedule, **given)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f'config.optimizer.options = {settings.options}: pairs of a name and a value are needed, '
            f'and {name} takes {", ".join([*known][1:])} ({error}).'
        ) from error
    decay = optax.masked(decay_updated(schedule, settings.weight_decay), decayed)
    return optax.chain(made, decay) if apart and settings.weight_decay else made


def counted(made: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer that is not ours, with a count of its updates; see `optimizer.updates_made`."""
    return optax.chain(made, optax.scale_by_schedule(lambda count: 1.0))


def require_updates(made: optax.GradientTransformation, params: Any, name: str) -> None:
    """Raises `UsageError` if it is no optimizer, or needs more than gradients and parameters."""
    try:
        jax.eval_shape(lambda p: made.update(p, made.init(p), p), params)
    except Exception as error:
        raise UsageError(
            f'the optimizer {name!r}: an optax.GradientTransformation is needed, such as '
            f'optax.adam(1e-3), whose update takes gradients, state and parameters '
            f'({type(error).__name__}: {error}).'
        ) from error
