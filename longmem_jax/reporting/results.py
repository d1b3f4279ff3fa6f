"""The final table of results, and `results.json`."""

import json
import math
from pathlib import Path
from typing import Any

import jax

from longmem_jax.evaluation.result import Result
from longmem_jax.reporting.progress import Progress


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
    path.write_text(json.dumps(content, indent=1) + '\n')


def in_short(result: Result) -> str:
    """The most important one or two numbers of a result, as text."""
    if result.answers:
        return f'exact match {result.exact_match:.2%}, accuracy {result.accuracy:.2%}'
    return f'{result.bits_per_byte:.4f} bits/byte, perplexity {result.perplexity:,.2f}'


def show(
    progress: Progress, results: dict[str, Result], sample: str, paths: dict[str, Any]
) -> None:
    """Prints the results with their protocol, a sample, and the paths of files."""
    if any(result.answers for result in results.values()):
        rows = [
            (name, f'{r.exact_match:.2%}', f'{r.accuracy:.2%}', f'{r.loss:.4f}')
            for name, r in results.items()
        ]
        progress.table('Results', ('evaluation', 'exact match', 'accuracy', 'nats/token'), rows)
        _show_details(progress, results, sample, paths)
        return
    rows = [
        (name, f'{r.bits_per_byte:.4f}', f'{r.loss:.4f}', f'{r.perplexity:,.2f}')
        for name, r in results.items()
    ]
    if len(results) == 2:
        # With retrieval no memory is reset; there the model alone comes first.
        pair = sorted(results.values(), key=lambda result: result.memory == 'kept')
        without, kept = (result.bits_per_byte for result in pair)
        share = (without - kept) / without if without and math.isfinite(without) else 0.0
        rows.append(('gain by memory', f'{without - kept:.4f}', f'{share:.1%}', ''))
    progress.table('Results', ('evaluation', 'bits/byte', 'nats/token', 'perplexity'), rows)
    _show_details(progress, results, sample, paths)


def _show_details(
    progress: Progress, results: dict[str, Result], sample: str, paths: dict[str, Any]
) -> None:
    """Prints the lines below the table."""
    for name, result in results.items():
        progress.say(f'{name}: {result.protocol}')
    if sample:
        progress.say('Sample:\n' + sample)
    for name, path in paths.items():
        progress.say(f'{name}: {path}')
