"""Inspecting the layers of a model while it reads."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp

from longmem_jax.around import Around
from longmem_jax.attention.attend import INSPECTED, Look
from longmem_jax.contract import ModelSettings
from longmem_jax.errors import UsageError, visible
from longmem_jax.segment import Segment
from longmem_jax.views import NOWHERE, Held, Read, Seen, Series, View


@contextlib.contextmanager
def capture(
    layer_type: type | tuple[type, ...], function: Callable[..., Any]
) -> Iterator[list[Any]]:
    """Records something of every layer of a type that reads a segment within the `with` block.

    Under `jax.jit` the block must be inside the compiled function, which returns the list.

    Args:
      layer_type: class of the layers, or several.
      function: `(layer, x, state, segment) -> value`, called just before the layer.

    Yields:
      The values, in the order in which the layers are called.
    """
    values: list[Any] = []

    def record(
        next_method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> Any:
        if isinstance(context.module, layer_type) and context.method_name == '__call__':
            values.append(function(context.module, *args))
        return next_method(*args, **kwargs)

    with nn.intercept_methods(record):
        yield values


def looks(model: nn.Module, params: Any, segment: Segment, state: Any) -> tuple[Any, ...]:
    """Reads a segment and returns what every softmax attention of the model looked at.

    Under `jax.jit`, return only the looks that you need: the others are then not computed.

    Args:
      model, params: a model of any kind.
      segment: full segments; `Look.parts` does not hold for shorter ones with trailing memory tokens.
      state: memories before the segment.

    Returns:
      The state after the segment, the logits, and a dictionary from the path of a module to its
      `Look`, such as 'block_1/attention/attention'. A module that is called several times has
      'PATH, call 1', 'PATH, call 2', ... Attention without softmax weights, such as linear attention,
      and attention within learned spans are not in it.
    """
    (logits, state, _), recorded = model.apply(
        {'params': params}, segment, state, train=False, mutable=[INSPECTED]
    )
    return state, logits, _by_path(recorded.get(INSPECTED, {}))


def _by_path(recorded: Any) -> dict[str, Look]:
    """The looks in a collection, by the paths of their modules."""
    found: dict[str, Look] = {}
    for (*path, _), calls in flax.traverse_util.flatten_dict(recorded).items():
        name = '/'.join(path)
        for number, look in enumerate(calls):
            found[name if len(calls) == 1 else f'{name}, call {number + 1}'] = look
    return found


class Glimpse(flax.struct.PyTreeNode):
    """What the view of one layer says of a segment.

    Attributes:
      held, after: name to `Held`, before the segment and after it.
      read: name to `Read`.
      series: of the view, and the metrics and the numbers by head that the layer reports.
    """

    held: dict[str, Held]
    after: dict[str, Held]
    read: dict[str, Read]
    series: Series


def glimpses(
    model: Any,
    params: Any,
    segment: Segment,
    targets: jax.Array,
    state: Any,
    views: dict[type, View],
) -> tuple[jax.Array, Any, dict[str, Glimpse]]:
    """Reads a segment of one document and asks the views of its layers.

    Args:
      segment: packed, without starts.
      targets: int32 [batch, length].
      state: memories before the segment.
      views: class of layers to their view.

    Returns:
      Nats of the targets, [batch, length]; the memories after the segment; and path of a layer to its
      `Glimpse`, without extra tokens.
    """
    found: dict[str, Glimpse] = {}

    def ask(
        next_method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> Any:
        result = next_method(*args, **kwargs)
        layer = context.module
        around = isinstance(layer, Around)
        if type(layer) in views and context.method_name == (
            'close_segment' if around else '__call__'
        ):
            if around:
                before, opened, _ = args
                x, read, new, aux = None, segment, result, layer.report(opened)
            else:
                (x, before, read), (_, new, aux) = args, result
            looks = _by_path(layer.variables.get(INSPECTED, {}))
            seen = Seen(layer, x, before, new, read, looks)
            glimpse = _glimpse(views[type(layer)], seen, aux.metrics, aux.per_head)
            found['/'.join(layer.path)] = _of_tokens(glimpse, layer.settings, segment)
        return result

    with nn.intercept_methods(ask):
        (scores, state, _), _ = model.apply(
            {'params': params},
            segment,
            targets,
            state,
            train=False,
            method='nll',
            mutable=[INSPECTED],
        )
    return scores.nll, state, found


def _of_tokens(glimpse: Glimpse, settings: ModelSettings, segment: Segment) -> Glimpse:
    """A glimpse of a layer without the extra tokens of its segments, see `around`.

    The segments before are taken to have been full, as all but the last one of a document are.
    """
    leading, trailing = settings.leading, settings.trailing
    if not leading and not trailing:
        return glimpse
    whole = settings.segment_length - leading - trailing

    def in_tokens(ages: jax.Array) -> jax.Array:
        """Ages in tokens of ages in positions; 0 = an extra token."""
        segments, place = jnp.divmod(ages - 1, settings.segment_length)
        place = place - trailing
        return jnp.where((place >= 0) & (place < whole), segments * whole + place + 1, 0)

    def rows(array: jax.Array, axis: int) -> jax.Array:
        if array.shape[axis] == 1:
            return array
        return jax.lax.slice_in_dim(array, leading, leading + segment.tokens.shape[1], axis=axis)

    def held(each: Held) -> Held:
        ages = in_tokens(each.ages)
        return each.replace(weights=jnp.where(ages > 0, each.weights, 0.0), ages=ages)

    def read(each: Read) -> Read:
        places = rows(each.places, 2)
        if not each.slots:
            inside, before = places - leading, in_tokens(-places)
            is_token = (inside >= 0) & (inside < segment.num_valid[:, None, None, None])
            earlier = (places < 0) & (places > NOWHERE) & (before > 0)
            places = jnp.where(is_token, inside, jnp.where(earlier, -before, NOWHERE))
        return each.replace(weights=rows(each.weights, 2), places=places)

    by_token = {name: rows(line, 1) for name, line in glimpse.series.by_token.items()}
    return Glimpse(
        {name: held(each) for name, each in glimpse.held.items()},
        {name: held(each) for name, each in glimpse.after.items()},
        {name: read(each) for name, each in glimpse.read.items()},
        glimpse.series.replace(by_token=by_token),
    )


def _glimpse(view: View, seen: Seen, metrics: Any, per_head: Any) -> Glimpse:
    """The answers of a view; `metrics` and `per_head` are those of the layer's `Aux`."""
    held, after = (
        _answer('held', dict, view.held(seen.layer, state)) if view.held else {}
        for state in (seen.state, seen.new)
    )
    series = _answer('series', Series, view.series(seen)) if view.series else Series()
    by_segment = {name: value.reshape(1, 1) for name, value in (metrics or {}).items()}
    by_segment |= {name: value[None] for name, value in (per_head or {}).items()}
    # Numbers by head say more than their mean.
    series = series.replace(by_segment=by_segment | series.by_segment)
    read = _answer('read', dict, view.read(seen)) if view.read else {}
    return Glimpse(held, after, read, series)


def _answer(name: str, kind: type, given: Any) -> Any:
    """What a function of a `View` gave; raises `UsageError` if it is of another kind."""
    of = dict(held=Held, read=Read).get(name)
    wrong = not isinstance(given, kind)
    if wrong or (of and not all(isinstance(each, of) for each in given.values())):
        wanted = f'a dict of names to views.{of.__name__}' if of else 'a views.Series'
        raise UsageError(
            f'view.{name}: gave {visible(repr(given), 60)}; it must give {wanted}, see '
            'longmem_jax/views.py'
        )
    return given
