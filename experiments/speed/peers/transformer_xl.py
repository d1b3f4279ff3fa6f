"""kimiyoung/transformer-xl: `MemTransformerLM` of its `pytorch` folder (Dai et al., 2019).

Two things in it no longer run: masks of bytes, and a CUDA version that PyTorch for CPUs does not have.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch


def build(settings: dict[str, Any], sizes: Any) -> Callable[[], float]:
    """Steps of a model with a memory of `settings['memory']` tokens."""
    checkout = sys.path[0]
    sys.path[:0] = [f'{checkout}/pytorch', f'{checkout}/pytorch/utils']
    torch.Tensor.byte = torch.Tensor.bool
    torch.version.cuda = torch.version.cuda or '12.0'
    from mem_transformer import MemTransformerLM

    torch.manual_seed(0)
    model = MemTransformerLM(
        sizes.vocab,
        sizes.layers,
        sizes.heads,
        sizes.width,
        sizes.head_dim,
        sizes.feed_forward,
        dropout=0.0,
        dropatt=0.0,
        tie_weight=True,
        tgt_len=sizes.segment,
        ext_len=0,
        mem_len=settings['memory'],
    )
    for parameter in model.parameters():  # some are left as they were allocated
        torch.nn.init.normal_(parameter, std=0.02)
    memory = ()

    def call() -> float:
        nonlocal memory
        tokens = torch.randint(0, sizes.vocab, (sizes.segment + 1, sizes.lanes))
        model.zero_grad()
        loss, *memory = model(tokens[:-1], tokens[1:], *memory)
        loss = loss.mean()
        loss.backward()
        return loss.item()

    return call
