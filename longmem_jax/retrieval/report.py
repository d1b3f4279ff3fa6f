"""The neighbours of the tokens whose probability rose most: a text file and an HTML page."""

import heapq
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.reporting.gained import Gained, Read, shown_text, write
from longmem_jax.retrieval.knn_lm import log_weights
from longmem_jax.retrieval.reading import Part

SHOWN = 8  # neighbours per token
BEFORE = 16  # context tokens shown


class Gains:
    """The tokens whose log-probability rose most, with their neighbours."""

    def __init__(self, count: int):
        """Keeps the best `count` tokens."""
        self._count, self._number = count, 0
        self._heap: list[Any] = []

    def add(
        self, part: Part, looked_up: Any, numbers: np.ndarray, mixed: np.ndarray, choice: Any
    ) -> None:
        """Adds the tokens of a part.

        `numbers`, int64 [tokens, k], are those of the neighbours in the datastore; k may be larger
        than the number of neighbours that was chosen. `mixed`, [tokens], are log-probabilities of
        the targets with retrieval.
        """
        gain, shown = mixed - looked_up.log_model, min(SHOWN, choice.k)
        positions = np.argwhere(part.counted)
        for token in np.argsort(-gain)[: self._count]:
            segment, lane, position = positions[token]
            scores = -looked_up.distances[token, : choice.k].astype(np.float64) / choice.temperature
            weights = np.exp(log_weights(scores))
            first = max(position + 1 - BEFORE, 0)
            entry = (
                part.tokens[segment, lane, first : position + 1],
                int(looked_up.targets[token]),
                float(looked_up.log_model[token]),
                float(mixed[token]),
                numbers[token, :shown],
                weights[:shown],
            )
            self._number += 1
            item = (float(gain[token]), self._number, entry)
            if len(self._heap) < self._count:
                heapq.heappush(self._heap, item)
            else:
                heapq.heappushpop(self._heap, item)

    def write(self, store: Any, tokenizer: Tokenizer, folder: Path) -> dict[str, Path]:
        """Writes `retrieval.txt` and `retrieval.html`; returns their paths."""

        reported = []
        for _, _, (before, target, alone, mixed, numbers, weights) in sorted(
            self._heap, reverse=True
        ):
            rows = (store.rows(name, numbers) for name in ('contexts', 'values', 'documents'))
            reads = [
                Read(
                    float(weight),
                    f'document {document}',
                    shown_text(tokenizer, context),
                    shown_text(tokenizer, [value]),
                    value == target,
                )
                for weight, context, value, document in zip(weights, *rows, strict=True)
            ]
            before, token = shown_text(tokenizer, before), shown_text(tokenizer, [target])
            reported.append(Gained(before, token, alone, mixed, reads))
        text, page = write(reported, folder, 'retrieval', 'Neighbours')
        return {'neighbours': text, 'the same': page}
