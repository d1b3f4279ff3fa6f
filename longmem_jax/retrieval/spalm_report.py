"""What SPALM's gate does: its values, and the neighbours of the tokens that gained or lost most.

WORKDIR/spalm.json   results, and how many tokens have which values of the gate
WORKDIR/spalm.png    the same as a figure
WORKDIR/spalm.txt    tokens with the value of the gate, and neighbours with their weights
"""

import functools
import heapq
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax import files
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.evaluation.result import Result
from longmem_jax.reporting.figures import figure, save
from longmem_jax.reporting.gained import shown_text
from longmem_jax.retrieval.gated import Scores
from longmem_jax.retrieval.spalm_text import Inputs

BINS = 20  # of the gate's values, from 0 (neighbours only) to 1 (model only)
BEFORE = 16  # context tokens shown


class Report:
    """Collects the gate's values (`counts`, int64 [BINS] tokens), and the tokens that gained and
    lost most.
    """

    def __init__(self, tokens: int):
        """Keeps `tokens` that gained most and as many that lost most."""
        self._tokens, self._number = tokens, 0
        self._heaps: dict[str, list[Any]] = {'gained': [], 'lost': []}
        self.counts = np.zeros((BINS,), np.int64)

    def add(self, inputs: Inputs, neighbours: np.ndarray, rows: np.ndarray, scores: Scores) -> None:
        """Adds one segment of every lane.

        `rows`, int64 [lanes, length], are each token's row in `neighbours`, int64 [tokens of the
        split, K], the numbers of neighbours.
        """
        counted = inputs.counted > 0
        self.counts += np.histogram(scores.open[counted], BINS, (0.0, 1.0))[0]
        gain = np.where(counted, scores.alone - scores.nll, 0)
        for sign, heap in ((1, self._heaps['gained']), (-1, self._heaps['lost'])):
            for place in np.argsort(-sign * gain, axis=None)[: self._tokens]:
                lane, position = np.unravel_index(place, gain.shape)
                if sign * gain[lane, position] <= 0:
                    break
                self._number += 1
                entry = (
                    inputs.tokens[lane, max(position + 1 - BEFORE, 0) : position + 1],
                    int(inputs.targets[lane, position]),
                    float(scores.alone[lane, position]),
                    float(scores.nll[lane, position]),
                    float(scores.open[lane, position]),
                    np.array(neighbours[rows[lane, position]]),
                    scores.weights[lane, position],
                )
                item = (float(sign * gain[lane, position]), self._number, entry)
                push = heapq.heappush if len(heap) < self._tokens else heapq.heappushpop
                push(heap, item)

    def write(
        self, store: Any, tokenizer: Tokenizer, folder: Path, results: dict[str, Result]
    ) -> dict[str, Path]:
        """Writes the files; returns their paths by what they are."""
        paths = {
            'numbers': folder / 'spalm.json',
            'gate': folder / 'spalm.png',
            'neighbours': folder / 'spalm.txt',
        }
        edges = np.linspace(0, 1, BINS + 1)
        content: dict[str, Any] = {name: result.as_json() for name, result in results.items()}
        content['gate'] = {'edges': edges.round(6).tolist(), 'tokens': self.counts.tolist()}
        files.write_json(paths['numbers'], content)
        drawn = figure(5, 3)
        axes = drawn.add_subplot()
        axes.bar(edges[:-1], self.counts / max(self.counts.sum(), 1), 1 / BINS, align='edge')
        axes.set_xlabel('gate: 0 = neighbours only, 1 = model only')
        axes.set_ylabel('share of tokens')
        save(drawn, paths['gate'])
        lines = []
        for name, heap in self._heaps.items():
            lines.append(f'Tokens that {name} most by their neighbours:\n')
            for item in sorted(heap, reverse=True):
                lines += _described(item[2], store, tokenizer)
        files.write(paths['neighbours'], '\n'.join(lines) + '\n')
        return paths


def _described(entry: Any, store: Any, tokenizer: Tokenizer) -> list[str]:
    """The lines of one token."""
    text = functools.partial(shown_text, tokenizer)
    before, target, alone, nll, share, numbers, weights = entry
    lines = [
        f'{text(before)} [{text([target])}]  p {np.exp(-alone):.4f} -> {np.exp(-nll):.4f}, '
        f'gate {share:.3f}'
    ]
    found = numbers >= 0
    contexts, values, documents = (
        store.rows(name, numbers[found]) for name in ('contexts', 'values', 'documents')
    )
    rows = zip(weights[found], documents, contexts, values, strict=True)
    for weight, document, context, value in rows:
        lines.append(f'    {weight:.3f}  document {document}: {text(context)} [{text([value])}]')
    return lines
