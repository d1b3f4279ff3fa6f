"""The neighbours of the tokens whose probability rose most: a text file and an HTML page."""

import heapq
import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.retrieval.knn_lm import log_weights
from longmem_jax.retrieval.reading import Part

SHOWN = 8  # neighbours per token
BEFORE = 16  # context tokens shown


class Gains:
    """The tokens whose log-probability rose most, with their neighbours."""

    def __init__(self, count: int):
        """Keeps the best `count` tokens."""
        self._count, self._heap, self._number = count, [], 0

    def add(
        self, part: Part, looked_up: Any, numbers: np.ndarray, mixed: np.ndarray, choice: Any
    ) -> None:
        """Adds the tokens of a part.

        Args:
          part: what was read.
          looked_up: `evaluate.LookupResult` of its counted tokens.
          numbers: int64 [tokens, k], numbers of the neighbours in the datastore; k may be larger
            than the number of neighbours that was chosen.
          mixed: [tokens], log-probabilities of the targets with retrieval.
          choice: `evaluate.Choice`, the number of neighbours and the temperature.
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

    def write(self, store: Any, tokenizer: Any, folder: Path) -> dict[str, Path]:
        """Writes `retrieval.txt` and `retrieval.html`; returns their paths."""

        def text(tokens: Iterable[int]) -> str:
            known = np.asarray([token for token in tokens if 0 <= token < tokenizer.vocab_size])
            known = known[known != tokenizer.begin] if len(known) else known.astype(np.int32)
            return tokenizer.decode(known).decode('utf-8', 'replace').replace('\n', ' ')

        lines, sections = [], []
        for gain, _, (before, target, alone, mixed, numbers, weights) in sorted(
            self._heap, reverse=True
        ):
            lines.append(
                f'{text(before)} [{text([target])}]  p {np.exp(alone):.4f} -> {np.exp(mixed):.4f}, '
                f'gain {gain:.2f} nats'
            )
            table_rows = []
            contexts, values = store.rows('contexts', numbers), store.rows('values', numbers)
            documents = store.rows('documents', numbers)
            for context, value, document, weight in zip(
                contexts, values, documents, weights, strict=True
            ):
                neighbour = f'{text(context)} [{text([value])}]'
                lines.append(f'    {weight:.3f}  document {document}: {neighbour}')
                mark = ' class="right"' if value == target else ''
                table_rows.append(
                    f'<tr{mark}><td>{weight:.3f}</td><td>{document}</td>'
                    f'<td>{html.escape(neighbour)}</td></tr>'
                )
            sections.append(
                f'<h3>{html.escape(text(before))} <mark>{html.escape(text([target]))}</mark></h3>'
                f'<p>p {np.exp(alone):.4f} &rarr; {np.exp(mixed):.4f}, gain {gain:.2f} nats</p>'
                '<table><tr><th>weight</th><th>document</th><th>context [token]</th></tr>'
                f'{"".join(table_rows)}</table>'
            )
        paths = {'neighbours': folder / 'retrieval.txt', 'the same': folder / 'retrieval.html'}
        paths['neighbours'].write_text('\n'.join(lines) + '\n', encoding='utf-8')
        style = 'body{font-family:monospace} td{padding:0 1em} .right{background:#dfd}'
        page = (
            f'<!doctype html><meta charset="utf-8"><title>Neighbours</title><style>{style}</style>'
        )
        paths['the same'].write_text(page + ''.join(sections), encoding='utf-8')
        return paths
