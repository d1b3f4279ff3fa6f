"""Translation by beam search, and BLEU."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax import stopping
from longmem_jax.data.parallel import source_places
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError, number_of
from longmem_jax.generation.beam_search import beam_search


class Translator:
    """Translates with given parameters; compiles once.

    Attributes:
      model: a `Seq2Seq`.
      tokenizer: of both languages.
      settings: `config.translate`.
      max_target: most tokens of a translation, including its end.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, settings: Any, max_target: int):
        """Compiles nothing yet."""
        self.model, self.tokenizer = model, tokenizer
        self.settings, self.max_target = settings, max_target
        search = functools.partial(
            _search, model, tokenizer.begin, tokenizer.vocab_size, max_target
        )
        self._search = jax.jit(search, static_argnums=(2, 3))

    def __call__(
        self, params: Any, texts: Iterable[str], say: Callable[[str], Any] = lambda said: None
    ) -> list[str]:
        """The best translation of every text; `say` gets a line if sources are cut at `max_source`."""
        max_source = self.model.config.seq2seq.max_source
        lanes, beams = self.settings.num_lanes, self.settings.beams
        encoded = [self.tokenizer.encode(text.encode()) for text in texts]
        if cut := sum(len(tokens) > max_source for tokens in encoded):
            say(
                f'Of {number_of(cut, "text")} only the first {max_source:,} tokens are translated: the '
                'model reads no more (config.model.seq2seq.max_source). Give shorter lines'
            )
        sources = [source_places(tokens, max_source) for tokens in encoded]
        translations: list[np.ndarray] = []
        for start in range(0, len(sources), lanes):
            batch = sources[start : start + lanes]
            padded = np.stack([*batch, *[batch[-1]] * (lanes - len(batch))])
            tokens = self._search(
                params, jnp.asarray(padded), beams, float(self.settings.length_penalty)
            )
            translations.extend(np.asarray(tokens)[: len(batch)])
            stopping.poll()
        return [self._text(tokens) for tokens in translations]

    def _text(self, tokens: np.ndarray) -> str:
        ends = np.flatnonzero(tokens == self.tokenizer.begin)
        tokens = tokens[: ends[0]] if len(ends) else tokens
        return self.tokenizer.decode(tokens).decode('utf-8', 'replace').strip()


def _search(
    model: Any,
    begin: int,
    vocab_size: int,
    max_target: int,
    params: Any,
    source: jax.Array,
    beams: int,
    length_penalty: float,
) -> jax.Array:
    """The best translation of every source [lanes, max_source], int32 [lanes, max_target]."""
    variables = {'params': params}
    cache = model.apply(variables, source, method='open_target')

    def step(tokens: jax.Array, cache: Any, position: jax.Array) -> tuple[jax.Array, Any]:
        index = jnp.broadcast_to(position, tokens.shape).astype(jnp.int32)
        logits, cache = model.apply(variables, tokens[:, None], cache, index, method='extend')
        # A model may have more ids than its tokenizer: they mean nothing.
        return logits[:, 0, :vocab_size], cache

    tokens, _ = beam_search(
        step,
        cache,
        source.shape[0],
        begin=begin,
        end=begin,
        beams=beams,
        max_length=max_target,
        length_penalty=length_penalty,
    )
    return tokens[:, 0]


def require_libraries() -> None:
    """Raises `UsageError` if a library that `bleu` needs is missing: before hours of training."""
    _bleu()


def _bleu() -> Any:
    """sacrebleu's BLEU (extra `[translate]`)."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise UsageError(
            f"BLEU of translations needs sacrebleu ({error}): pip install 'longmem_jax[translate]'."
        ) from error
    return BLEU()


def bleu(translations: list[str], references: list[str]) -> tuple[float, str]:
    """BLEU-4 in percent by sacrebleu, and its signature: tokenisation, case, smoothing, version.

    Raises:
      UsageError: sacrebleu is missing.
    """
    metric = _bleu()
    score = metric.corpus_score(translations, [references]).score
    return score, str(metric.get_signature())
