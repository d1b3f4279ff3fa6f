"""lucidrains/infini-transformer-pytorch (Munkhdalai et al., 2024)."""

from collections.abc import Callable
from typing import Any

import torch


def build(settings: dict[str, Any], sizes: Any) -> Callable[[], float]:
    """Steps of a model with the delta rule."""
    from infini_transformer_pytorch import InfiniTransformer

    torch.manual_seed(0)
    model = InfiniTransformer(
        num_tokens=sizes.vocab,
        dim=sizes.width,
        depth=sizes.layers,
        dim_head=sizes.head_dim,
        heads=sizes.heads,
        ff_mult=sizes.feed_forward / sizes.width,
        use_mem_delta_rule=settings['delta'],
    )
    memories = None

    def call() -> float:
        nonlocal memories
        tokens = torch.randint(0, sizes.vocab, (sizes.lanes, sizes.segment + 1))
        model.zero_grad()
        logits, _, new = model(tokens[:, :-1], past_memories=memories, return_new_memories=True)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        memories = [tuple(part.detach() for part in layer) for layer in new]
        return loss.item()

    return call
