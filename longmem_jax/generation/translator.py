"""Translation by beam search, and BLEU."""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.data.parallel import source_places
from longmem_jax.generation.beam_search import beam_search


class Translator:
    """Translates with given parameters; compiles once.

    Attributes:
      model: a `Seq2Seq`.
      tokenizer: of both languages.
      settings: `config.translate`.
      max_target: tokens of a translation at most, its end among them.
    """

    def __init__(self, model: Any, tokenizer: Any, settings: Any, max_target: int):
        """Compiles nothing yet."""
        self.model, self.tokenizer = model, tokenizer
        self.settings, self.max_target = settings, max_target
        search = functools.partial(_search, model, tokenizer.begin, max_target)
        self._search = jax.jit(search, static_argnums=(2, 3))

    def __call__(self, params: Any, texts: Iterable[str]) -> list[str]:
        """The best translation of every text; sources are cut at `max_source` tokens."""
        places = self.model.config.seq2seq.max_source
        lanes, beams = self.settings.num_lanes, self.settings.beams
        rows = [source_places(self.tokenizer.encode(text.encode()), places) for text in texts]
        found = []
        for start in range(0, len(rows), lanes):
            part = rows[start : start + lanes]
            padded = np.stack([*part, *[part[-1]] * (lanes - len(part))])
            tokens = self._search(
                params, jnp.asarray(padded), beams, float(self.settings.length_penalty)
            )
            found.extend(np.asarray(tokens)[: len(part)])
        return [self._text(row) for row in found]

    def _text(self, row):
        ends = np.flatnonzero(row == self.tokenizer.begin)
        tokens = row[: ends[0]] if len(ends) else row
        return self.tokenizer.decode(tokens).decode('utf-8', 'replace').strip()


def _search(model, begin, max_target, params, source, beams, length_penalty):
    """The best translation of every source, int32 [lanes, max_target]."""
    variables = {'params': params}
    cache = model.apply(variables, source, method='open_target')

    def step(tokens, cache, place):
        index = jnp.broadcast_to(place, tokens.shape).astype(jnp.int32)
        logits, cache = model.apply(variables, tokens[:, None], cache, index, method='extend')
        return logits[:, 0], cache

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


def bleu(translations: list[str], references: list[str]) -> tuple[float, str]:
    """BLEU-4 of sacrebleu in percent, and its signature: tokenisation, case, smoothing, version."""
    import sacrebleu

    metric = sacrebleu.metrics.BLEU()
    score = metric.corpus_score(translations, [references]).score
    return score, str(metric.get_signature())
