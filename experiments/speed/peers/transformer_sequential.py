"""facebookresearch/transformer-sequential: fixed and adaptive spans, Compressive, Expire-Span."""

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import torch


def build(settings: dict[str, Any], sizes: Any) -> Callable[[], float]:
    """Steps of a model; `settings`: module, class, and the repository's own arguments."""
    arguments = argparse.Namespace(
        nlayers=sizes.layers,
        hid_sz=sizes.width,
        inner_hid_sz=sizes.feed_forward,
        nheads=sizes.heads,
        head_dim=sizes.head_dim,
        vocab_sz=sizes.vocab,
        mem_sz=sizes.segment,
        dropout=0.0,
        pre_norm=False,
        feedback=False,
        device=torch.device('cpu'),
        adapt_span=False,
        expire_span=False,
    )
    vars(arguments).update(settings['arguments'])
    torch.manual_seed(0)
    module = importlib.import_module(f'models.{settings["module"]}')
    model = getattr(module, settings['class'])(arguments)
    cache = model.init_hid_cache(sizes.lanes)

    def call() -> float:
        nonlocal cache
        tokens = torch.randint(0, sizes.vocab, (sizes.lanes, sizes.segment + 1))
        model.zero_grad()
        scores, new, more = model(tokens[:, :-1], cache)
        loss = torch.nn.functional.nll_loss(scores.flatten(0, 1), tokens[:, 1:].flatten())
        if torch.is_tensor(more):
            loss = loss + more.mean()
        loss.backward()
        cache = [part.detach() for part in new]
        return loss.item()

    return call
