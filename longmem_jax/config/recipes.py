"""Memories to compare on equal terms: the same backbone, data and budget, another memory.

`--config=configs/NAME.py:memory=adaptive_span` puts one of `MEMORIES` in place of the config's own.
"""

from typing import Any

from longmem_jax.config.base import stack, transformer_xl
from longmem_jax.config.variants import whole_number
from longmem_jax.errors import UsageError, unknown

MEMORIES = ('transformer_xl', 'adaptive_span', 'compressive', 'expire_span')


def expire_span(max_span: int, ramp: int, block: int, **changes: Any) -> dict[str, Any]:
    """The sub-config of Expire-Span that never overflows, for segments of `block` tokens."""
    return (
        dict(
            max_span=max_span,
            ramp=ramp,
            capacity=max_span + ramp + block,
            position_length=block,
            pre_div=1.0,
            initial_share=0.1,
            shorten=False,
            start='empty',
            num_sizes=6,
        )
        | changes
    )


def adaptive_span(max_span: int, ramp: int, **changes: Any) -> dict[str, Any]:
    """The sub-config of Adaptive-Span, one span per head."""
    return (
        dict(
            max_span=max_span,
            ramp=ramp,
            per='head',
            initial_share=0.5,
            start='empty',
            trim_memory=False,
            num_sizes=6,
        )
        | changes
    )


def compressive(memory_length: int, compressed_length: int, rate: int, **changes: Any):
    """The sub-config of the Compressive Transformer as in its paper: learned convolution."""
    return (
        dict(
            memory_length=memory_length,
            compressed_length=compressed_length,
            rate=rate,
            compression='convolution',
            reading='segment',
            position='transformer_xl',
            reconstruction='attention',
            start='empty',
        )
        | changes
    )


def sliding(span: int, rate: int) -> dict[str, Any]:
    """The Compressive baseline of the Expire-Span paper: half of a span as it is, half pooled."""
    return compressive(
        span // 2,
        span // 2 // rate,
        rate,
        compression='mean',
        reading='sliding',
        position='none',
        reconstruction='none',
    )


def infinity_former(memory_length: int, block: int, **changes: Any) -> dict[str, Any]:
    """The sub-config of the infinity-former for segments of `block` tokens, as in its papers."""
    return (
        dict(
            memory_length=memory_length,
            position='transformer_xl',
            num_basis=150,
            widths=(0.01, 0.05),
            num_samples=512,
            tau=0.5,
            ridge=0.5,
            sigma_sq_min=1e-4,
            density='gaussian',
            padding=True,
            write_length=block,
            memory_threshold=0,
            threshold_kind='fill',
            sticky='none',
            num_bins=128,
            kl='true',
            sigma_0=0.05,
        )
        | changes
    )


def infini(**changes: Any) -> dict[str, Any]:
    """The sub-config of Infini-attention as in its paper, with the delta rule."""
    return (
        dict(
            position='rotary',
            num_kv_heads=0,
            features='elu',
            rule='delta',
            normalizer='sum',
            guard='clamp',
            epsilon=1e-6,
            gate_init=0.0,
            skip_gate_when_empty=False,
            rotate_memory=False,
            scale_scores=True,
            gradients=True,
        )
        | changes
    )


def normalized_xl(memory_length: int, **changes: Any) -> dict[str, Any]:
    """The sub-config of the Memorizing Transformer's layers without a memory."""
    return (
        dict(
            position='t5',
            memory_length=memory_length,
            window=0,
            attend_self=True,
            start='empty',
            scale_init=1.0,
        )
        | changes
    )


def memorizing(memory_length: int, memory_size: int, **changes: Any) -> dict[str, Any]:
    """The sub-config of the Memorizing Transformer's layer with a memory, as in its paper."""
    return (
        normalized_xl(memory_length)
        | dict(
            memory_size=memory_size,
            top_k=32,
            search='exact',
            recall_target=0.95,
            block_size=8192,
            cache_dtype='float32',
            unwritten='masked',
            gate_init=0.0,
        )
        | changes
    )


def with_memory(
    model: Any,
    layer: int,
    memory_length: int,
    memory_size: int,
    scale_init: float = 1.0,
    **changes: Any,
):
    """Puts a Memorizing layer (from 1 on) among `normalized_xl` ones; memory_size 0 = none."""
    stack(model, model.num_layers, 'normalized_xl', model.feed_forward[0])
    model.normalized_xl = normalized_xl(memory_length, scale_init=scale_init)
    if memory_size:
        names = list(model.attention)
        names[layer - 1] = 'memorizing'
        model.attention = tuple(names)
        model.memorizing = memorizing(memory_length, memory_size, scale_init=scale_init, **changes)
    elif 'memorizing' in model:
        del model.memorizing


def linear(features: str, size: int, chunk: int, **changes: Any) -> dict[str, Any]:
    """The sub-config of linear attention, 'elu', 'rfa' or 't2r', as in their released code."""
    return (
        dict(
            features=features,
            size=size,
            tau=1.0,
            random='orthogonal',
            redraw=False,
            seed=0,
            learned_scale=True,
            gate=False,
            guard='add' if features == 'elu' else 'clamp',
            epsilon=dict(elu=1e-6, rfa=1.0, t2r=0.01)[features],
            bias=True,
            chunk=chunk,
            carry=True,
            gradients=True,
        )
        | changes
    )


def memory_tokens(num_tokens: int, memory_length: int, recurrent: bool) -> dict[str, Any]:
    """The sub-config of memory tokens: fresh ones beside a cache, or carried ones without."""
    return dict(
        num_tokens=num_tokens,
        at_end=recurrent,
        carry=recurrent,
        gradients=True,
        read_cache=False,
        look_ahead='nearest',
        memory_length=0 if recurrent else memory_length,
        same_length=False,
        clamp_length=0,
        position='transformer_xl',
    )


def product_key(num_keys: int, query_dim: int) -> dict[str, Any]:
    """The sub-config of product keys as in their paper, in smaller models with fewer neighbours."""
    return dict(
        num_keys=num_keys,
        num_heads=4,
        top_k=min(32, num_keys // 4),
        query_dim=query_dim,
        query_hidden=(),
        query_norm='batch',
        normalize_query=False,
        temperature=1.0,
        keys='product',
        chunk=0,
    )


class Comparison:
    """Which memory stands in every layer of a configuration, and how far each would look.

    Variants of a config file change one setting after the other, in any order.

    Attributes:
      config: the whole configuration; changed in place.
      memory: one of `MEMORIES`.
      settings: the lengths below.
    """

    def __init__(
        self,
        config: Any,
        *,
        block: int,
        span: int,
        ramp: int,
        xl: int,
        compressed: int,
        weights: dict[str, float],
        rate: int = 4,
        **changes: Any,
    ):
        """Puts Expire-Span into the configuration.

        Args:
          config: the whole configuration.
          block: tokens per segment.
          span: longest span of Expire-Span and Adaptive-Span.
          ramp: of both.
          xl: memory of Transformer-XL.
          compressed: tokens that the Compressive Transformer reaches back.
          weights: weights of the losses of Expire-Span and Adaptive-Span, by their names.
          rate: tokens per slot of the Compressive Transformer.
          **changes: further fields of Expire-Span.
        """
        self.config, self.memory, self.changes = config, 'expire_span', changes
        self.settings = dict(
            block=block,
            span=span,
            ramp=ramp,
            xl=xl,
            compressed=compressed,
            weights=weights,
            rate=rate,
        )
        self.change()

    def change(self, memory: str | None = None, changes: Any = None, **settings: Any) -> None:
        """Changes some settings and writes the layers anew; `changes` replaces fields of Expire-Span.

        Raises:
          UsageError: another memory, or a length that is no number.
        """
        self.memory = memory or self.memory
        if self.memory not in MEMORIES:
            raise UsageError(unknown('memory', self.memory, MEMORIES))
        self.settings |= settings
        self.changes = self.changes | (changes or {})
        given, model = self.settings, self.config.model
        fields = dict(
            transformer_xl=lambda: transformer_xl(given['xl']),
            adaptive_span=lambda: adaptive_span(given['span'], given['ramp']),
            compressive=lambda: sliding(given['compressed'], given['rate']),
            expire_span=lambda: expire_span(
                given['span'], given['ramp'], given['block'], **self.changes
            ),
        )
        for name in MEMORIES:
            if name in model:
                del model[name]
        stack(model, model.num_layers, self.memory, model.feed_forward[0])
        model[self.memory] = fields[self.memory]()
        weights = self.config.train.loss_weights
        for name in list(weights):
            del weights[name]
        if self.memory in given['weights']:
            weights[self.memory] = given['weights'][self.memory]

    def variants(self) -> dict[str, Any]:
        """`memory=NAME` and `span=TOKENS` for `variants.variant`."""

        return dict(
            memory=lambda config, name: self.change(memory=name),
            span=lambda config, value: self.change(span=whole_number('span', value)),
        )
