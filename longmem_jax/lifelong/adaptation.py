"""Local adaptation: a few SGD steps on rows of the memory, from the trained parameters (MbPA).

`W~ = argmin lambda |W~ - W|^2 - sum_k alpha_k log p(y_k | x_k; W~)` (de Masson d'Autume et al., 2019,
Eq. 4; the rows weigh the same, `alpha_k = 1 / K`), approached by L steps from W. A row that is answered
has parameters of its own, so rows are adapted in chunks; a whole BERT-base per row takes 440 MB, and
momentum as much again. Therefore a part of the parameters may be adapted instead of all.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from longmem_jax.errors import UsageError
from longmem_jax.lifelong.chunks import in_chunks, split, unsplit
from longmem_jax.lifelong.network import Encoded, Network
from longmem_jax.lifelong.rows import Rows, one, take
from longmem_jax.lifelong.steps import Gradient
from longmem_jax.training.optimizer import parameter_path

Part = dict[str, jax.Array]  # parameters by their path
BLOCK = re.compile(r'(?:block|layer)_(\d+)')  # a part of the path of a block's parameters
READERS = re.compile('embed|position|types|table')  # in paths of what comes before all blocks


class Adaptation(NamedTuple):
    """How parameters are adapted.

    Attributes:
      steps: L.
      rate: of SGD.
      momentum: of SGD, from 0 in every adaptation.
      anchor: lambda, over the adapted parameters; the others do not move.
      adapted: 'all', 'head', or 'last:K' for the head and the last K blocks of the encoder with what
        comes after them.
      chunk: rows that are adapted side by side; does not change the result.
      first_order: gradients of the steps are constants where something is differentiated through them.
    """

    steps: int
    rate: float
    momentum: float
    anchor: float
    adapted: str
    chunk: int
    first_order: bool = False


def adapted_problem(adapted: Any) -> str:
    """What is wrong with the field `adapted`; '' = nothing."""
    if adapted in ('all', 'head') or re.fullmatch(r'last:[1-9]\d*', str(adapted)):
        return ''
    return f"adapted = {adapted!r}: must be 'all', 'head' or 'last:K', such as 'last:2'"


def _block(path: str) -> int | None:
    """The number of the block of a parameter; None = it is in none."""
    found = (BLOCK.fullmatch(part) for part in path.split('/'))
    return next((int(match[1]) for match in found if match), None)


def part_of(params: Any, adapted: str) -> Part:
    """The parameters that are adapted, by path; `adapted` as in `Adaptation`.

    What has no block and is no embedding comes after the blocks.

    Raises:
      UsageError: an encoder with fewer blocks than 'last:K' asks for.
    """
    leaves = {parameter_path(path): leaf for path, leaf in jax.tree.leaves_with_path(params)}
    if adapted == 'all':
        return leaves
    blocks = {path: _block(path) for path in leaves if path.startswith('encoder/')}
    numbers = sorted({number for number in blocks.values() if number is not None})
    last = int(adapted.removeprefix('last:')) if adapted != 'head' else 0
    if last > len(numbers):
        raise UsageError(
            f'config.lifelong: adapted = {adapted!r}: the encoder has {len(numbers)} numbered blocks; '
            f"choose 'head', 'all'{f' or at most last:{len(numbers)}' if numbers else ''}."
        )

    def moves(path: str) -> bool:
        if path.startswith('head/') or not last:
            return path.startswith('head/')
        block = blocks[path]
        if block is None:
            return not READERS.search(path)
        return block in numbers[-last:]

    return {path: leaf for path, leaf in leaves.items() if moves(path)}


def put(params: Any, part: Part) -> Any:
    """The parameters with those of `part` in their places."""
    return jax.tree.map_with_path(lambda path, leaf: part.get(parameter_path(path), leaf), params)


def adapt(
    loss: Callable[[Part, Any], jax.Array],
    start: Part,
    batches: Any,
    settings: Adaptation,
) -> tuple[Part, jax.Array]:
    """L steps `v <- momentum v + d(loss + lambda |w - start|^2) / dw`, `w <- w - rate v`, from v = 0.

    Can be differentiated with respect to `start` and to what `loss` holds: exactly, or with the inner
    gradients held constant (`settings.first_order`).
    Returns W~, and the loss before each step without the anchor, float32 [steps].

    Args:
      loss: `(part, batch) -> scalar`.
      start: W.
      batches: of each step, leaves [steps, ...]; None = `loss` gets None.
      settings: see `Adaptation`.
    """

    def step(carry: tuple[Part, Any], batch: Any) -> tuple[tuple[Part, Any], jax.Array]:
        part, velocity = carry
        value, gradient = jax.value_and_grad(loss)(part, batch)
        gradient = jax.tree.map(
            lambda g, now, then: g + 2 * settings.anchor * (now - then), gradient, part, start
        )
        if settings.first_order:
            gradient = jax.lax.stop_gradient(gradient)
        if settings.momentum:
            velocity = jax.tree.map(lambda v, g: settings.momentum * v + g, velocity, gradient)
            gradient = velocity
        part = jax.tree.map(lambda w, v: w - settings.rate * v, part, gradient)
        return (part, velocity), value

    # Without momentum there is no velocity to keep.
    zeros = jax.tree.map(jnp.zeros_like, start) if settings.momentum else None
    (part, _), losses = jax.lax.scan(step, (start, zeros), batches, length=settings.steps)
    return part, losses


class _Known(NamedTuple):
    """An encoder of texts that were read already."""

    encoded: Encoded
    width: int

    def encode(self, params: Any, inputs: Any, key: Any) -> Encoded:
        del params, inputs, key
        return self.encoded


def adapt_to(
    network: Network,
    params: Any,
    stream: Rows,
    numbers: jax.Array,
    found: jax.Array,
    settings: Adaptation,
) -> tuple[Part, jax.Array]:
    """Adapts W to rows of the stream, int32 [K], the same in every step; without dropout.

    Rows that are not `found`, bool [K], count for nothing. Returns as `adapt`.
    """
    rows = take(stream, numbers)
    if settings.adapted == 'head':  # the encoder stays as it is, so it reads the rows once
        read = network.encoder.encode(params['encoder'], network.head.inputs(rows), None)
        known: Any = _Known(read, network.encoder.width)
        network = Network(known, network.head)

    def loss(part: Part, batch: None) -> jax.Array:
        del batch
        return network.loss(put(params, part), rows, found)

    return adapt(loss, part_of(params, settings.adapted), None, settings)


def predict_each(
    network: Network,
    params: Any,
    stream: Rows,
    rows: Rows,
    numbers: jax.Array,
    found: jax.Array,
    settings: Adaptation,
) -> Any:
    """Scores of n rows, each by parameters adapted to its own neighbours; every row begins from W.

    Neighbours are int32 [n, K], `found` bool [n, K]; `settings.chunk` rows are adapted side by
    side. Returns scores of the head, leaves [n, ...].
    """

    def answer(row: Rows, numbers: jax.Array, found: jax.Array) -> Any:
        part, _ = adapt_to(network, params, stream, numbers, found, settings)
        scores = network.scores(put(params, part), one(row))
        return jax.tree.map(lambda leaf: leaf[0], scores)

    return in_chunks(jax.vmap(answer), settings.chunk, rows, numbers, found)


def adapt_once(
    network: Network,
    params: Any,
    stream: Rows,
    numbers: jax.Array,
    found: jax.Array,
    settings: Adaptation,
) -> Any:
    """Coarse adaptation (Wang et al., 2020): the parameters for a whole test set, adapted once.

    `numbers` are the rows of every step, int32 [steps, K], `found` bool [steps, K].
    """

    def loss(part: Part, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        numbers, found = batch
        return network.loss(put(params, part), take(stream, numbers), found)

    start = part_of(params, settings.adapted)
    part, _ = adapt(loss, start, (numbers, found), settings)
    return put(params, part)


def meta_gradient(
    network: Network,
    params: Any,
    stream: Rows,
    rows: Rows,
    there: jax.Array,
    numbers: jax.Array,
    found: jax.Array,
    settings: Adaptation,
    dropout: jax.Array | None = None,
) -> Gradient:
    """The meta-task loss `l(f_w~(x), y)` with `w~` adapted to the neighbours of x (Wang et al., 2020).

    Losses and scores of the rows are each at its own `w~`; the gradient is with respect to `params`. It
    is exact, through the gradients of the adaptation and through the anchor's W; or, with
    `settings.first_order`, the sum of the gradients at the adapted parameters.

    Args:
      there: bool [n]; the others count for nothing.
      numbers: neighbours of each, int32 [n, K].
      found: bool [n, K].
      dropout: key of dropout in `f_w~(x)`, of which every row has a part; the adaptation has none.
        None = no dropout.
    """

    def answer(
        params: Any, row: Rows, numbers: jax.Array, found: jax.Array, key: jax.Array | None
    ) -> tuple[jax.Array, Any]:
        part, _ = adapt_to(network, params, stream, numbers, found, settings)
        scores = network.scores(put(params, part), one(row), key)
        losses = network.head.losses(scores, one(row))
        return losses[0], jax.tree.map(lambda leaf: leaf[0], scores)

    def total(params: Any, chunk: Any) -> tuple[jax.Array, Any]:
        *examples, there = chunk
        losses, scores = jax.vmap(answer, (None, 0, 0, 0, 0))(params, *examples)
        return jnp.where(there, losses, 0).sum(), (losses, scores)

    def add(gradients: Any, chunk: Any) -> tuple[Any, Any]:
        gradient, aux = jax.grad(total, has_aux=True)(params, chunk)
        return jax.tree.map(jnp.add, gradients, gradient), aux

    size = min(settings.chunk, len(there))
    # Not the copies in the last chunk.
    filled = jnp.arange(-(-len(there) // size) * size) < len(there)
    keys = None if dropout is None else jax.random.split(dropout, len(there))
    *parts, really = split((rows, numbers, found, keys, there), size)
    chunks = (*parts, really & filled.reshape(really.shape))
    gradients, aux = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), chunks)
    losses, scores = unsplit(aux, len(there))
    count = jnp.maximum(there.sum(), 1)
    loss = jnp.where(there, losses, 0).sum() / count
    return Gradient(loss, losses, scores, jax.tree.map(lambda leaf: leaf / count, gradients))
