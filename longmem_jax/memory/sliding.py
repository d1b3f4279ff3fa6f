"""`full` with a shorter window, for decoders in which layers of two windows alternate (GPT-Neo)."""

import dataclasses

from longmem_jax.memory import full


class SlidingAttention(full.FullAttention):
    """Attention to the last `window` tokens, the query's own included.

    Attributes:
      window, position: as in `FullAttention`.
    """

    window: int = 256


ENTRY = dataclasses.replace(
    full.ENTRY,
    name='sliding',
    layer=dataclasses.replace(
        full.ENTRY.layer,
        module=SlidingAttention,
        context=lambda fields: 0,  # it was trained on texts that are longer than its window
    ),
    variants={},
    same_as=full.ENTRY.name,
)
