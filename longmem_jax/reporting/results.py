"""The final table of results, and `results.json`."""

import math
from pathlib import Path
from typing import Any

import jax

from longmem_jax import files
from longmem_jax.evaluation.floors import Floors
from longmem_jax.evaluation.result import Result
from longmem_jax.reporting.progress import Progress

NOTHING = 'nothing scored'


def write_results(
    path: Path, step: int, params: Any, one_lane: Any, results: dict[str, Any]
) -> None:
    """Writes sizes and results, with their protocols, as JSON.

    Args:
      path: file to write.
      step: training steps taken.
      params: parameters.
      one_lane: memory of one lane, abstract or not.
      results: by name; a `Result`, or any JSON value.
    """
    sizes = [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(one_lane)]
    content = {
        'step': step,
        'parameters': sum(leaf.size for leaf in jax.tree.leaves(params)),
        'state_bytes_per_lane': sum(sizes),
    }
    for name, result in results.items():
        content[name] = result.as_json() if isinstance(result, Result) else result
    files.write_json(path, content)


def in_short(result: Result) -> str:
    """The most important one or two numbers of a result, as text."""
    if not result.tokens:
        return NOTHING
    if result.answers:
        return f'exact match {result.exact_match:.2%}, accuracy {result.accuracy:.2%}'
    return f'{result.bits_per_byte:.4f} bits/byte, perplexity {result.perplexity:,.2f}'


def show(progress: Progress, results: dict[str, Result], paths: dict[str, Any]) -> None:
    """Prints the results with their protocol, and the paths of files."""
    if any(result.answers for result in results.values()):
        columns = ('exact match', 'accuracy', 'nats/token')
        rows = [
            _row(name, r, f'{r.exact_match:.2%}', f'{r.accuracy:.2%}', f'{r.loss:.4f}')
            for name, r in results.items()
        ]
    else:
        columns = ('bits/byte', 'nats/token', 'perplexity')
        rows = [
            _row(name, r, f'{r.bits_per_byte:.4f}', f'{r.loss:.4f}', f'{r.perplexity:,.2f}')
            for name, r in results.items()
        ]
        rows += _gain(results)
    progress.table('Results', ('evaluation', *columns), rows)
    for name, result in results.items():
        progress.say(f'{name}: {result.protocol}')
    for name, path in paths.items():
        progress.say(f'{name}: {path}')


def show_floors(progress: Progress, floors: Floors) -> None:
    """Prints the scores of players without a learned memory."""
    formats = {
        'exact_match': ('exact match', '{:.2%}'),
        'accuracy': ('accuracy', '{:.2%}'),
        'bits_per_byte': ('bits/byte', '{:.4f}'),
        'loss': ('nats/token', '{:.4f}'),
        'perplexity': ('perplexity', '{:,.2f}'),
    }
    names = list(next(iter(floors.scores.values()), ()))
    rows = [
        (label, *(formats[name][1].format(scores[name]) for name in names))
        for label, scores in floors.scores.items()
    ]
    columns = ('rule: what it sees', *(formats[name][0] for name in names))
    progress.table('Without a learned memory', columns, rows)
    progress.say(f'rules: {floors.protocol}')


def _row(name: str, result: Result, *numbers: str) -> tuple[str, ...]:
    """A row of the table; without numbers if there are none."""
    return (name, *(numbers if result.tokens else (NOTHING, *[''] * (len(numbers) - 1))))


def _gain(results: dict[str, Result]) -> list[tuple[str, ...]]:
    """The row that compares two results with and without memory; no row if there is nothing to."""
    if len(results) != 2 or not all(result.tokens for result in results.values()):
        return []
    # With retrieval no memory is reset; there the model alone comes first.
    pair = sorted(results.values(), key=lambda result: result.memory == 'kept')
    without, kept = (result.bits_per_byte for result in pair)
    share = (without - kept) / without if without and math.isfinite(without) else 0.0
    return [('gain by memory', f'{without - kept:.4f}', f'{share:.1%}', '')]
