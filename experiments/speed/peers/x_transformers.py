"""lucidrains/x-transformers: a decoder with the memory of Transformer-XL."""

from collections.abc import Callable
from typing import Any

import torch


def build(settings: dict[str, Any], sizes: Any) -> Callable[[], float]:
    """Steps of a model; `settings`: memory, and fields of its `Decoder` as `positions`."""
    from x_transformers import Decoder, TransformerWrapper

    torch.manual_seed(0)
    layers = Decoder(
        dim=sizes.width,
        depth=sizes.layers,
        heads=sizes.heads,
        attn_dim_head=sizes.head_dim,
        ff_mult=sizes.feed_forward / sizes.width,
        **settings['positions'],
    )
    model = TransformerWrapper(
        num_tokens=sizes.vocab,
        max_seq_len=sizes.segment,
        max_mem_len=settings['memory'],
        use_abs_pos_emb=False,
        attn_layers=layers,
    )
    memory = None

    def call() -> float:
        nonlocal memory
        tokens = torch.randint(0, sizes.vocab, (sizes.lanes, sizes.segment + 1))
        model.zero_grad()
        logits, memory = model(tokens[:, :-1], mems=memory, return_mems=True)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss.item()

    return call
