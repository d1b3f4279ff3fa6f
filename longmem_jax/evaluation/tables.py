"""The final table of results, and `results.json`."""

import math
from pathlib import Path
from typing import Any

import jax

from longmem_jax import files
from longmem_jax.evaluation.floors import Floors
from longmem_jax.evaluation.result import Result
from longmem_jax.reporting.progress import Progress
from longmem_jax.training.metrics import ANSWERS, METRICS, TEXT

NOTHING = 'nothing scored'


def write_results(
    path: Path, step: int, params: Any, one_lane: Any, results: dict[str, Any]
) -> None:
    """Writes sizes, results with their protocols, and the device, as JSON.

    `one_lane` is the memory of one lane, abstract or not; `results` are by name, a `Result` or any
    JSON value.
    """
    sizes = [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(one_lane)]
    content: dict[str, Any] = {
        'step': step,
        'parameters': sum(leaf.size for leaf in jax.tree.leaves(params)),
        'state_bytes_per_lane': sum(sizes),
    }
    for name, result in results.items():
        content[name] = result.as_json() if isinstance(result, Result) else result
    content['device'] = f'{jax.device_count()} x {jax.devices()[0].device_kind}'
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
    answers = any(result.answers for result in results.values())
    shown = {
        name: metric
        for name, metric in METRICS.items()
        if (ANSWERS if answers else TEXT) in metric.tables
    }
    rows = [
        _row(name, result, *(metric.form.format(result[key]) for key, metric in shown.items()))
        for name, result in results.items()
    ]
    columns = [metric.label for metric in shown.values()]
    rows += [] if answers else _gain(results, len(columns))
    progress.table('Results', ('evaluation', *columns), rows)
    for name, result in results.items():
        progress.say(f'{name}: {result.protocol}')
    for name, path in paths.items():
        progress.say(f'{name}: {path}')


def show_floors(progress: Progress, floors: Floors) -> None:
    """Prints the scores of players without a learned memory."""
    names = list(next(iter(floors.scores.values()), ()))
    rows = [
        (label, *(METRICS[name].form.format(scores[name]) for name in names))
        for label, scores in floors.scores.items()
    ]
    columns = ('rule: what it sees', *(METRICS[name].label for name in names))
    progress.table('Without a learned memory', columns, rows)
    progress.say(f'rules: {floors.protocol}')


def _row(name: str, result: Result, *numbers: str) -> tuple[str, ...]:
    """A row of the table; without numbers if there are none."""
    return (name, *(numbers if result.tokens else (NOTHING, *[''] * (len(numbers) - 1))))


def _gain(results: dict[str, Result], columns: int) -> list[tuple[str, ...]]:
    """The row that compares two results with and without memory; no row if there is nothing to."""
    if len(results) != 2 or not all(result.tokens for result in results.values()):
        return []
    # With retrieval no memory is reset; there the model alone comes first.
    pair = sorted(results.values(), key=lambda result: result.memory == 'kept')
    without, kept = (result.bits_per_byte for result in pair)
    share = (without - kept) / without if without and math.isfinite(without) else 0.0
    return [('gain by memory', f'{without - kept:z.4f} ({share:z.1%})', *[''] * (columns - 1))]
