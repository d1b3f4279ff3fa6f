"""lucidrains/memorizing-transformers-pytorch (Wu et al., 2022).

Its memory is searched by FAISS (HNSW, approximate) and has one key-value head.
"""

import tempfile
from collections.abc import Callable
from typing import Any

import torch


def build(settings: dict[str, Any], sizes: Any) -> Callable[[], float]:
    """Steps of a model that fill its memory; `settings`: memories, layer (from 1), k, cache."""
    from memorizing_transformers_pytorch import MemorizingTransformer

    torch.manual_seed(0)
    model = MemorizingTransformer(
        num_tokens=sizes.vocab,
        dim=sizes.width,
        depth=sizes.layers,
        dim_head=sizes.head_dim,
        heads=sizes.heads,
        ff_mult=sizes.feed_forward // sizes.width,
        memorizing_layers=settings['layer'],
        # An index that is full is thrown away, so there is room for all steps.
        max_knn_memories=16 * settings['memories'],
        num_retrieved_memories=settings['k'],
        xl_max_memories=settings['cache'],
        pad_id=-1,
        knn_memories_directory=tempfile.mkdtemp(),
    )
    memories = model.create_knn_memories(batch_size=sizes.lanes)
    cache = None

    def call() -> float:
        nonlocal cache
        tokens = torch.randint(0, sizes.vocab, (sizes.lanes, sizes.segment + 1))
        model.zero_grad()
        loss, cache = model(
            tokens[:, :-1], knn_memories=memories, xl_memories=cache, labels=tokens[:, 1:]
        )
        loss.backward()
        return loss.item()

    return call
