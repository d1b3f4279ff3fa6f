"""Hugging Face's transformers: a pretrained decoder reads prompts and continues them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def build(settings: dict[str, Any], sizes: Any) -> Callable[[], float]:
    """Steps that read prompts from their start and continue them, by the most likely tokens.

    Args:
      settings: `folder` of the decoder, and `prompt`, `drawn` and `texts`: tokens of both, and prompts.
      sizes: are those of the folder.
    """
    model = AutoModelForCausalLM.from_pretrained(settings['folder'], dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # as many as are asked for
    shape = (settings['texts'], settings['prompt'])
    random = np.random.default_rng(0).integers(0, model.config.vocab_size, shape)
    tokens = torch.as_tensor(random, device=model.device)

    @torch.no_grad()
    def call() -> float:
        read = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            pad_token_id=0,
            min_new_tokens=settings['drawn'],
            max_new_tokens=settings['drawn'],
        )
        return float(read[0, -1])

    return call
