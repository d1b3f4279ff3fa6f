"""Text in and out of a model: prompts, decoding of tokens as they are drawn, a sample."""

import codecs
import os
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.models.language_model import LanguageModel


def read_prompt(prompt: str) -> bytes:
    """The bytes of a prompt; '@FILE' is the text of a file.

    Raises:
      UsageError: the file cannot be read.
    """
    if not prompt.startswith('@'):
        return os.fsencode(prompt)  # bytes of the command line that are not UTF-8 stay as they are
    try:
        return Path(prompt[1:]).read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f'--prompt={prompt}: cannot be read ({error}).') from error


class TextStream:
    """Decodes tokens as they arrive; an incomplete character waits for its remaining bytes."""

    CONTEXT = 16  # earlier tokens decoded again with new ones, since spaces depend on what precedes

    def __init__(self, tokenizer: Any):
        """Starts a text of `tokenizer`'s tokens."""
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder('utf-8')(errors='replace')
        self._last = np.zeros((0,), np.int32)

    def text(self, tokens: np.ndarray, *, final: bool = False) -> str:
        """The complete characters of new tokens, int32 [n]; `final` also returns incomplete ones."""
        before = self._tokenizer.decode(self._last)
        joined = np.concatenate([self._last, tokens])
        after = self._tokenizer.decode(joined)
        self._last = joined[-self.CONTEXT :]
        return self._decoder.decode(after[len(before) :], final)


def sample_text(model: LanguageModel, params: Any, tokenizer: Any, settings: Any) -> str:
    """Generates `settings.sample_length` tokens without a prompt; `settings` is `config.generate`."""
    reader = Reader(model, params, fresh_state(model, params, 1), np.zeros((1, 0), np.int32))
    reader.read(np.asarray([[tokenizer.begin]], np.int32))
    stream = TextStream(tokenizer)
    chunks = reader.write(
        settings.sample_length,
        vocab_size=tokenizer.vocab_size,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
    )
    return ''.join(stream.text(chunk[0]) for chunk in chunks)
