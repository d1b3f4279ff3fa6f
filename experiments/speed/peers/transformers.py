"""Hugging Face's transformers: a GPT-2 with new parameters reads a prompt and continues it."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def build(settings: dict[str, Any], sizes: Any) -> Callable[[], float]:
    """Steps that read a prompt from its start and continue it, by the most likely tokens.

    Args:
      settings: `prompt` and `drawn`, the tokens of both.
      sizes: of the model.
    """
    longest = settings['prompt'] + settings['drawn']
    config = GPT2Config(
        vocab_size=sizes.vocab,
        n_positions=max(1024, longest),
        n_embd=sizes.width,
        n_layer=sizes.layers,
        n_head=sizes.heads,
        n_inner=sizes.feed_forward,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval()
    tokens = torch.randint(0, sizes.vocab, (1, settings['prompt']))
    number = dict(min_new_tokens=settings['drawn'], max_new_tokens=settings['drawn'])

    @torch.no_grad()
    def call() -> float:
        mask = torch.ones_like(tokens)
        read = model.generate(
            tokens, attention_mask=mask, do_sample=False, pad_token_id=0, **number
        )
        return float(read[0, -1])

    return call
