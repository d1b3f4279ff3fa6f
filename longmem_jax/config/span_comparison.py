"""The four memories that Sukhbaatar et al. (2021, Sec. 5) compare, for configs of their experiments."""

from typing import Any

from longmem_jax.config.recipes import Given, given


def compared(
    *,
    block: int,
    span: int,
    ramp: int,
    xl: int,
    compressed: int,
    expire_loss: float,
    adaptive_loss: float,
    num_sizes: int = 6,
    **expire: Any,
) -> dict[str, Given]:
    """Memories by name, for `variants.variant`.

    Args:
      block: tokens per segment.
      span: longest span of Expire-Span and Adaptive-Span.
      ramp: of both.
      xl: memory of Transformer-XL.
      compressed: reach of the Compressive Transformer in tokens: half as they are, half pooled by 4.
      expire_loss, adaptive_loss: weights of their losses.
      num_sizes: sizes of Expire-Span's buffer that are compiled.
      **expire: further fields of Expire-Span.
    """
    return dict(
        expire_span=given(
            max_span=span,
            ramp=ramp,
            position_length=block,
            num_sizes=num_sizes,
            loss_weights=dict(expire_span=expire_loss),
            **expire,
        ),
        adaptive_span=given(
            max_span=span,
            ramp=ramp,
            initial_share=0.5,
            loss_weights=dict(adaptive_span=adaptive_loss),
        ),
        transformer_xl=given(memory_length=xl),
        compressive=given(
            'compressive_sliding',
            memory_length=compressed // 2,
            compressed_length=compressed // 8,
            rate=4,
        ),
    )
