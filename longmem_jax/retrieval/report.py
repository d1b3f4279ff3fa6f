"""Which neighbours the tokens that gained most were given: a text file and an HTML page."""

import heapq
import html
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.retrieval.knn_lm import log_weights
from longmem_jax.retrieval.reading import Part

SHOWN = 8  # neighbours per token
BEFORE = 16  # tokens before it


class Gains:
    """The tokens whose log-probability rose most, with their neighbours."""

    def __init__(self, count: int):
        """Keeps `count` tokens."""
        self._count, self._heap, self._number = count, [], 0

    def add(self, part: Part, found: Any, numbers: np.ndarray, mixed: np.ndarray, choice: Any):
        """Looks at the tokens of a part.

        Args:
          part: what was read.
          found: what its counted tokens found.
          numbers: int64 [tokens, k], of the neighbours.
          mixed: log-probabilities with retrieval.
          choice: number of neighbours and temperature.
        """
        gain = mixed - found.log_model
        places = np.argwhere(part.counted)
        for at in np.argsort(-gain)[: self._count]:
            segment, lane, place = places[at]
            scores = -found.distances[at, : choice.k].astype(np.float64) / choice.temperature
            weights = np.exp(log_weights(scores))
            first = max(place + 1 - BEFORE, 0)
            entry = (
                part.tokens[segment, lane, first : place + 1],
                int(found.targets[at]),
                float(found.log_model[at]),
                float(mixed[at]),
                numbers[at, :SHOWN],
                weights[:SHOWN],
            )
            self._number += 1
            item = (float(gain[at]), self._number, entry)
            if len(self._heap) < self._count:
                heapq.heappush(self._heap, item)
            else:
                heapq.heappushpop(self._heap, item)

    def write(self, store: Any, tokenizer: Any, folder: Path) -> dict[str, Path]:
        """Writes `retrieval.txt` and `retrieval.html`; returns their paths."""

        def text(tokens):
            kept = np.asarray([token for token in tokens if 0 <= token < tokenizer.vocab_size])
            kept = kept[kept != tokenizer.begin] if len(kept) else kept.astype(np.int32)
            return tokenizer.decode(kept).decode('utf-8', 'replace').replace('\n', ' ')

        lines, rows = [], []
        for gain, _, (before, target, alone, mixed, numbers, weights) in sorted(
            self._heap, reverse=True
        ):
            lines.append(
                f'{text(before)} [{text([target])}]  p {np.exp(alone):.4f} -> {np.exp(mixed):.4f}, '
                f'gain {gain:.2f} nats'
            )
            cells = []
            contexts, values = store.rows('contexts', numbers), store.rows('values', numbers)
            documents = store.rows('documents', numbers)
            for context, value, document, weight in zip(
                contexts, values, documents, weights, strict=True
            ):
                given = f'{text(context)} [{text([value])}]'
                lines.append(f'    {weight:.3f}  document {document}: {given}')
                mark = ' class="right"' if value == target else ''
                cells.append(
                    f'<tr{mark}><td>{weight:.3f}</td><td>{document}</td>'
                    f'<td>{html.escape(given)}</td></tr>'
                )
            rows.append(
                f'<h3>{html.escape(text(before))} <mark>{html.escape(text([target]))}</mark></h3>'
                f'<p>p {np.exp(alone):.4f} &rarr; {np.exp(mixed):.4f}, gain {gain:.2f} nats</p>'
                '<table><tr><th>weight</th><th>document</th><th>context [token]</th></tr>'
                f'{"".join(cells)}</table>'
            )
        paths = {'neighbours': folder / 'retrieval.txt', 'the same': folder / 'retrieval.html'}
        paths['neighbours'].write_text('\n'.join(lines) + '\n', encoding='utf-8')
        style = 'body{font-family:monospace} td{padding:0 1em} .right{background:#dfd}'
        page = (
            f'<!doctype html><meta charset="utf-8"><title>Neighbours</title><style>{style}</style>'
        )
        paths['the same'].write_text(page + ''.join(rows), encoding='utf-8')
        return paths
