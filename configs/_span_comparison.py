"""The memories that Sukhbaatar et al. (2021, Sec. 5) compare, for configs of their experiments.

All have the same backbone: `transformer_xl` is the paper's own Transformer-XL, with a fixed span and one
table of distances, and so is everything else. Dai et al.'s, with other positions and parameters, is
`transformer_xl_dai`.
"""

from typing import Any

from longmem_jax.config.base import size
from longmem_jax.config.recipes import Given, given

CAPACITY = 4096  # of Expire-Span, at most: memories per layer and lane, alive at once


def compared(
    *,
    block: int,
    span: int,
    ramp: int,
    xl: int,
    compressed: int,
    expire_loss: float,
    adaptive_loss: float,
    adaptive_ramp: int = 32,
    adaptive_share: float = 0.0,
    num_sizes: int = 6,
    capacity: int = CAPACITY,
    **expire: Any,
) -> dict[str, Given]:
    """Memories by name, for `variants.variant`.

    Args:
      block: tokens per segment.
      span: longest span of Expire-Span and Adaptive-Span.
      ramp: of Expire-Span.
      xl: span of Transformer-XL.
      compressed: reach of the Compressive Transformer in tokens: half as they are, half pooled by 4.
      expire_loss, adaptive_loss: weights of their losses.
      adaptive_ramp, adaptive_share: ramp and initial spans of Adaptive-Span; as in its own scripts.
      num_sizes: sizes of Expire-Span's buffer that are compiled.
      capacity: of Expire-Span, if its spans could need more.
      **expire: further fields of Expire-Span.
    """
    memories = dict(
        expire_span=given(
            ramp=ramp,
            position_length=block,
            num_sizes=num_sizes,
            loss_weights=dict(expire_span=expire_loss),
            **dict(initial_share=0.1) | expire,
        ),
        adaptive_span=given(
            ramp=adaptive_ramp,
            initial_share=adaptive_share,
            loss_weights=dict(adaptive_span=adaptive_loss),
        ),
        transformer_xl=given(
            'adaptive_span',
            per='none',
            max_span=xl,
            loss_weights={},
            notes=(
                'the Transformer-XL of the Expire-Span paper: adaptive_span with a fixed span. That of '
                'Dai et al. is memory=transformer_xl_dai',
            ),
        ),
        transformer_xl_dai=given('transformer_xl', memory_length=xl),
        compressive=given('compressive_sliding'),
    )
    set_reach(memories, span, compressed, capacity=capacity)
    return memories


def set_reach(
    memories: dict[str, Given], span: int, compressed: int = 0, *, capacity: int = CAPACITY
) -> None:
    """Sets the longest spans, and what follows from them, in the result of `compared`.

    Args:
      memories: changed in place.
      span: longest span of Expire-Span and Adaptive-Span. Where a share that was chosen for long
        spans makes short ones begin below a segment, they begin at three segments. The ramp is at
        most a quarter of it, so that the reach, span and ramp, follows the span.
      compressed: reach of the Compressive Transformer; 0 = as it is.
      capacity: see `compared`.
    """
    expire = memories['expire_span'].fields
    block, ramp = expire['position_length'], min(expire['ramp'], span // 4)
    expire.update(max_span=span, ramp=ramp, capacity=min(capacity, span + ramp + block))
    if expire['initial_share'] * span + ramp < block:
        expire['initial_share'] = min(0.75, 3 * block / span)
    memories['adaptive_span'].fields['max_span'] = span
    if compressed:
        memories['compressive'].fields.update(
            memory_length=compressed // 2, compressed_length=compressed // 8, rate=4
        )


def task_model(config, *, vocab_size, heads=4, feed_forward=1024):
    """6 layers of 512 as in the released code for collision, and its lengths of training."""
    model = config.model
    size(config, layers=6, width=512, heads=heads, feed_forward=feed_forward)
    model.vocab_size = vocab_size
    model.scale_embedding = model.tie_weights = False
    model.init, model.embedding_std = 'torch', 1.0  # PyTorch's, as released
    model.scale_residual_init = True
    model.dropout = model.attention_dropout = 0.1
    model.residual_dropout = model.embedding_dropout = 0.0
    model.dtype = 'bfloat16'
    config.optimizer.schedule = 'constant'
    config.train.num_steps, config.train.segment_length = 100_000, 256
    config.train.log_every, config.train.evaluate_every = 200, 4000
    config.evaluate.num_lanes = 64
