"""Inspecting the layers of a model while it reads."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import flax.struct
import flax.traverse_util
import jax

from longmem_jax.attention.attend import INSPECTED, Look
from longmem_jax.segment import Segment
from longmem_jax.views import Held, Read, Seen, Series, View


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


@flax.struct.dataclass
class Glimpse:
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
    """Reads a segment of one document and asks the views of its layers, and of the model.

    Args:
      model, params: a model that continues texts.
      segment: packed, without starts.
      targets: int32 [batch, length].
      state: memories before the segment.
      views: class of layers, or of the model, to their view.

    Returns:
      Nats of the targets, [batch, length]; the memories after the segment; and path of a layer to its
      `Glimpse`, '' = the model itself.
    """
    found: dict[str, Glimpse] = {}

    def ask(
        next_method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> Any:
        result = next_method(*args, **kwargs)
        layer = context.module
        whole = not layer.path
        if type(layer) in views and context.method_name == ('nll' if whole else '__call__'):
            _, new, aux = result
            if whole:
                (segment, _, before), x = args, None
            else:
                x, before, segment = args
            looks = _by_path(layer.variables.get(INSPECTED, {}))
            seen = Seen(layer, x, before, new, segment, looks)
            reported = (None, None) if whole else (aux.metrics, aux.per_head)
            found['/'.join(layer.path)] = _glimpse(views[type(layer)], seen, *reported)
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


def _glimpse(view: View, seen: Seen, metrics: Any, per_head: Any) -> Glimpse:
    """The answers of a view; `metrics` and `per_head` are those of the layer's `Aux`."""
    held, after = (
        view.held(seen.layer, state) if view.held else {} for state in (seen.state, seen.new)
    )
    series = view.series(seen) if view.series else Series()
    by_segment = {name: value.reshape(1, 1) for name, value in (metrics or {}).items()}
    by_segment |= {name: value[None] for name, value in (per_head or {}).items()}
    # Numbers by head say more than their mean.
    series = series.replace(by_segment=by_segment | series.by_segment)
    return Glimpse(held, after, view.read(seen) if view.read else {}, series)
