"""Adaptive input embedding and adaptive softmax, tied or not; one cluster is the plain case.

Clusters are ranges of token ids in order of falling frequency: cluster 0 (the shortlist) up to the
first cutoff, and so on. With `div_val` > 1 cluster i has vectors of width d_embed / div_val**i and a
projection to the model's width (Baevski and Auli, 2019; Grave et al., 2017). As in Transformer-XL's
code, the logit of cluster i is the i-th entry from the end of the head's logits.

At the start the vectors that leave the embedding have the same length in every cluster, and learned
positions are as long as the tokens they are added to.
"""

import itertools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from longmem_jax.kernels.cpu import device_copies
from longmem_jax.layers import initializers, positions
from longmem_jax.layers.rows_product import rows_times_vectors
from longmem_jax.layers.scores import Scores

ABSOLUTE = ('none', 'sinusoidal', 'learned')


class Embedding(nn.Module):
    """Tokens to vectors and vectors to log-probabilities.

    Attributes:
      vocab_size, d_model: sizes.
      d_embed: width of the first cluster's vectors.
      cutoffs: first token id of cluster 1, 2, ...; () = one cluster, plain softmax.
      div_val: factor by which the width shrinks from cluster to cluster.
      tie_weights: whether output vectors are the input vectors.
      tie_projections: per cluster, whether the output projection is the input projection.
      output_bias: whether logits have biases.
      scale: whether input vectors are multiplied by sqrt(d_model).
      position: absolute positions added to the input: 'none', 'sinusoidal' or 'learned'.
      num_positions: length of the position table: a segment, or the model's own limit.
      std: standard deviation of token vectors at the start, before they are scaled.
      scheme, init_std: scheme of the output vectors at the start if they are not tied, and its
        standard deviation; see `initializers.by_scheme`.
      dtype: dtype of activations; logits and losses are at least float32.
      softmax: whether there are logits at all; encoders have none.
      blocks: parts of a segment that `nll` computes one after the other; no more logits exist at once.
    """

    vocab_size: int
    d_model: int
    d_embed: int
    cutoffs: tuple[int, ...]
    div_val: int
    tie_weights: bool
    tie_projections: tuple[bool, ...]
    output_bias: bool
    scale: bool
    position: str
    num_positions: int
    std: float
    scheme: str
    init_std: float
    dtype: jnp.dtype
    softmax: bool = True
    blocks: int = 1

    def setup(self) -> None:
        axes = initializers.with_axes
        normal, zeros = nn.initializers.normal, nn.initializers.zeros
        out = initializers.by_scheme(self.scheme, self.init_std, inputs=(1,))

        def table(name: str, entries: int, width: int, init: Any) -> jax.Array:
            return self.param(name, axes(init, ('vocab', None)), (entries, width))

        def projection(name: str, width: int) -> jax.Array:
            init = axes(normal(width**-0.5), (None, 'embed'))
            return self.param(name, init, (width, self.d_model))

        sizes, tables = self._sizes(), self._tables()
        self.tables = [
            table(f'table_{i}', *size, normal(self.std)) for i, size in enumerate(tables)
        ]
        projected = self.div_val > 1 or self.d_embed != self.d_model
        self.projections = (
            [projection(f'projection_{i}', width) for i, (_, width) in enumerate(tables)]
            if projected
            else []
        )
        if self.tie_weights:
            self.out_tables = self.tables
        else:
            self.out_tables = [table(f'out_table_{i}', *size, out) for i, size in enumerate(tables)]
        self.out_biases = [
            self.param(f'out_bias_{i}', axes(zeros, ('vocab',)), (entries,))
            if self.output_bias
            else jnp.zeros((entries,), jnp.float32)
            for i, (entries, _) in enumerate(tables)
        ]
        self.out_projections = [
            self.projections[i if self.div_val > 1 else 0]
            if self.tie_projections[i]
            else projection(f'out_projection_{i}', self.d_embed // self.div_val**i)
            for i in range(len(sizes) if projected else 0)
        ]
        if len(sizes) > 1:
            clusters = (len(sizes) - 1, self.d_embed)
            self.cluster_table = self.param('cluster_table', axes(zeros, (None, None)), clusters)
            self.cluster_bias = self.param('cluster_bias', axes(zeros, (None,)), clusters[:1])
        # A table of tied vectors, whose gradient has as many parts as clusters, and one more.
        self.copies = None
        if self.tie_weights and self.softmax and len(tables) == 1:
            ends = (self.cluster_table,) if len(sizes) > 1 else ()
            self.copies = device_copies.copies((self.tables[0], *ends))
        if self.position == 'learned':
            init = normal(self.std * (self.d_model**0.5 if self.scale else 1.0))
            self.places = self.param(
                'places', axes(init, ('distance', 'embed')), (self.num_positions, self.d_model)
            )

    def _edges(self) -> tuple[int, ...]:
        """First token id of every cluster, and the vocabulary size."""
        return (0, *self.cutoffs, self.vocab_size)

    def _sizes(self) -> list[int]:
        """Tokens per cluster."""
        edges = self._edges()
        return [high - low for low, high in itertools.pairwise(edges)]

    def _tables(self) -> list[tuple[int, int]]:
        """(entries, width) of every table: one per cluster, or a single one if widths are equal."""
        if self.div_val == 1:
            return [(self.vocab_size, self.d_embed)]
        return [(size, self.d_embed // self.div_val**i) for i, size in enumerate(self._sizes())]

    def encode(self, tokens: jax.Array, index: int | jax.Array) -> jax.Array:
        """Embeds tokens.

        Args:
          tokens: int32 [batch, n].
          index: position of the first token, an int or int32 [batch]: in its segment, or, with a
            longer table, in its document. Tokens beyond the table get its last position.

        Returns:
          [batch, n, d_model] in the compute dtype.
        """
        if len(self.tables) == 1:
            x = self._of_tables(
                lambda tables, tokens: tables[0][tokens].astype(self.dtype), self.tables, tokens
            )
            if self.projections:
                x = x @ self.projections[0].astype(self.dtype)
        else:
            x = jnp.zeros((*tokens.shape, self.d_model), self.dtype)
            edges = self._edges()
            for i, (vectors, projection) in enumerate(
                zip(self.tables, self.projections, strict=True)
            ):
                inside = (tokens >= edges[i]) & (tokens < edges[i + 1])
                embedded = vectors[jnp.clip(tokens - edges[i], 0, vectors.shape[0] - 1)]
                embedded = embedded.astype(self.dtype) @ projection.astype(self.dtype)
                x = jnp.where(inside[..., None], embedded, x)
        if self.scale:
            x = x * jnp.asarray(self.d_model**0.5, x.dtype)
        if self.position != 'none':
            if self.position == 'learned':
                table = self.places
            else:
                distances = positions.clamped(self.num_positions, 0)
                table = jnp.asarray(positions.sinusoids(distances, self.d_model))
            position = positions.following(index, tokens.shape[1])
            x = x + table[jnp.minimum(position, self.num_positions - 1)].astype(x.dtype)
        return x

    def _of_tables(
        self, function: Callable[[Any, jax.Array], jax.Array], tables: Any, rows: jax.Array
    ) -> jax.Array:
        """`function(tables, rows)`, with copies of the tables if there are any."""
        if self.copies is None:
            return function(tables, rows)
        return device_copies.apply(function, self.copies, rows)

    def _cluster_logits(self, hidden: jax.Array, i: int) -> jax.Array:
        """Logits of cluster i, [..., entries], at least float32; the head's end with the clusters."""
        edges, single = self._edges(), len(self.out_tables) == 1
        ends: tuple[jax.Array, ...] = ()
        bias = self.out_biases[0][edges[i] : edges[i + 1]] if single else self.out_biases[i]
        if i == 0 and self.cutoffs:
            ends = (self.cluster_table,)
            bias = jnp.concatenate([bias, self.cluster_bias])
        if self.out_projections:
            hidden = hidden @ self.out_projections[i].astype(hidden.dtype).T
        logit_dtype = jnp.promote_types(hidden.dtype, jnp.float32)

        def products(tables: tuple[jax.Array, ...], hidden: jax.Array) -> jax.Array:
            vectors = tables[0][edges[i] : edges[i + 1]] if single else tables[0]
            if ends:
                vectors = jnp.concatenate([vectors, tables[1]])
            return rows_times_vectors(hidden, vectors.astype(hidden.dtype), logit_dtype)

        logits = self._of_tables(products, (self.out_tables[0 if single else i], *ends), hidden)
        return logits + bias.astype(logit_dtype).reshape((1,) * (hidden.ndim - 1) + (-1,))

    def _target_logits(self, hidden: jax.Array, targets: jax.Array, logits: jax.Array) -> jax.Array:
        """The logits of `targets`, without another pass over all of them where that is exact.

        Products of bfloat16 numbers are exact in float32, up to the order of a sum. Those of float32
        numbers may be rounded in matrix products, as TPUs do, and then a logit by itself would not fit
        to the others.

        Args:
          hidden: [batch, n, d_model].
          targets: int32 [batch, n].
          logits: [batch, n, vocab_size], of one cluster.
        """
        if hidden.dtype != jnp.bfloat16:
            return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        if self.out_projections:
            hidden = hidden @ self.out_projections[0].astype(hidden.dtype).T
        products = (_rounded(hidden) * _rounded(self.out_tables[0][targets])).sum(axis=-1)
        values = products + self.out_biases[0][targets].astype(logits.dtype)
        return _as_taken(logits, targets, jax.lax.stop_gradient(values))

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits of the whole vocabulary; log-probabilities where there are clusters.

        Args:
          hidden: [batch, n, d_model].

        Returns:
          [batch, n, vocab_size], at least float32.
        """
        head = self._cluster_logits(hidden, 0)
        if not self.cutoffs:
            return head
        head = jax.nn.log_softmax(head)
        clusters = [head[..., : self.cutoffs[0]]]
        for i in range(1, len(self.cutoffs) + 1):
            tail = jax.nn.log_softmax(self._cluster_logits(hidden, i))
            clusters.append(head[..., -i, None] + tail)
        return jnp.concatenate(clusters, axis=-1)

    def nll(self, hidden: jax.Array, targets: jax.Array) -> Scores:
        """Scores of the targets, without returning logits; `log_z` is that of the first cluster.

        Args:
          hidden: [batch, n, d_model].
          targets: int32 [batch, n].
        """
        # Or XLA for TPUs puts the derivative of what gave `hidden` into the product over all tokens that
        # gives its own derivative, which then takes almost twice as long.
        hidden = jax.lax.optimization_barrier(hidden)
        if self.blocks == 1:
            return self._nll(hidden, targets)
        return _in_blocks(self._nll, self.blocks, hidden, targets)

    def _nll(self, hidden: jax.Array, targets: jax.Array) -> Scores:
        """`nll` with all logits at once."""
        edges = self._edges()

        def pick(logits: jax.Array, index: jax.Array) -> jax.Array:
            return jnp.take_along_axis(logits, index[..., None], axis=-1)[..., 0]

        head = self._cluster_logits(hidden, 0)
        log_z = jax.nn.logsumexp(head, axis=-1)
        if not self.cutoffs:
            logit = self._target_logits(hidden, targets, head)
            return Scores(log_z - logit, log_z, _is_likeliest(head, logit, targets))
        entry = targets
        for i in range(1, len(edges) - 1):
            inside = (targets >= edges[i]) & (targets < edges[i + 1])
            entry = jnp.where(inside, head.shape[-1] - i, entry)
        nll = log_z - pick(head, entry)
        # The likeliest token of the clusters so far, and its log-probability.
        likeliest = jnp.argmax(head[..., : edges[1]], axis=-1).astype(targets.dtype)
        highest = pick(head, likeliest) - log_z
        for i in range(1, len(edges) - 1):
            inside = (targets >= edges[i]) & (targets < edges[i + 1])
            tail = self._cluster_logits(hidden, i)
            local = jnp.clip(targets - edges[i], 0, tail.shape[-1] - 1)
            tail_z = jax.nn.logsumexp(tail, axis=-1)
            cost = tail_z - pick(tail, local)
            nll = nll + jnp.where(inside, cost, jnp.zeros_like(cost))
            top = jnp.argmax(tail, axis=-1).astype(targets.dtype)
            score = head[..., -i] - log_z + pick(tail, top) - tail_z
            likeliest = jnp.where(score > highest, top + edges[i], likeliest)
            highest = jnp.maximum(score, highest)
        return Scores(nll, log_z, likeliest == targets)


def _in_blocks(
    function: Callable[..., Scores], blocks: int, hidden: jax.Array, targets: jax.Array
) -> Scores:
    """`function(hidden, targets)` of one part of the tokens at a time, again so for its derivatives."""
    n = hidden.shape[1]
    size = -(-n // blocks)
    number = -(-n // size)

    def parts(array: jax.Array) -> jax.Array:
        room = ((0, 0), (0, number * size - n)) + ((0, 0),) * (array.ndim - 2)
        array = jnp.pad(array, room).reshape(len(array), number, size, *array.shape[2:])
        return jnp.moveaxis(array, 1, 0)

    of_part = jax.checkpoint(function, prevent_cse=False)
    scores = jax.lax.map(lambda part: of_part(*part), (parts(hidden), parts(targets)))
    return jax.tree.map(
        lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(len(hidden), -1)[:, :n], scores
    )


def _rounded(array: jax.Array) -> jax.Array:
    """float32 of bfloat16 precision. Compilers may leave out a conversion there and back."""
    like = jnp.finfo(jnp.bfloat16)
    return jax.lax.reduce_precision(array.astype(jnp.float32), like.nexp, like.nmant)


@jax.custom_jvp
def _as_taken(logits: jax.Array, targets: jax.Array, values: jax.Array) -> jax.Array:
    """`values`, [batch, n], with the derivatives of `logits[..., targets]`, which they are equal to.

    So the derivative with respect to the targets' vectors is part of the product that all vectors
    need, not rows that are added to a table by themselves.
    """
    del logits, targets
    return values


@_as_taken.defjvp
def _as_taken_derivative(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    logits, targets, values = primals
    tokens = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    is_target = tokens == targets[..., None]
    moved = jnp.where(is_target, tangents[0], jnp.zeros_like(tangents[0])).sum(axis=-1)
    # Not `values` themselves: a second derivative would miss that they depend on the logits.
    return _as_taken(logits, targets, values), moved.astype(values.dtype)


def _is_likeliest(logits: jax.Array, logit: jax.Array, targets: jax.Array) -> jax.Array:
    """Whether targets have the largest logit, of equal ones the first: bool [batch, n].

    Two maxima, which the product of the logits takes on its way; an argmax would read all of them once
    more.

    Args:
      logits: [batch, n, vocab_size].
      logit: [batch, n], those of the targets.
      targets: int32 [batch, n].
    """
    logits, logit = jax.lax.stop_gradient((logits, logit))
    token, target = jnp.arange(logits.shape[-1], dtype=targets.dtype), targets[..., None]
    nothing = jnp.asarray(-jnp.inf, logits.dtype)
    before = jnp.where(token < target, logits, nothing).max(axis=-1)
    after = jnp.where(token > target, logits, nothing).max(axis=-1)
    return (logit > before) & (logit >= after)
