r"""What each part of the memory contributes: a split scored with one part reset at a time.

python -m experiments.analysis.memory_parts --config=configs/NAME.py[:variant] --workdir=DIR \
    [--reset='attention/rows,attention/recent'] [--split=test] [--output=FILE.json]

`--mode=evaluate` resets everything before every segment. Here `--reset` lists regular expressions for
paths in the memory, such as 'attention/rows' (all layers), 'block_2/' or 'block_2/attention/rows'; each
row of the table has the matching parts reset before every segment, and all others kept. Without it the
parts are those of the model: fields of the state of any layer. The first row has everything kept, the
last one everything reset. The JSON file also has the memory's metrics, such as its mean size.
"""

import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

from experiments import markdown, provenance
from longmem_jax.commands import entry
from longmem_jax.data.lanes import Batch, in_order
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import exact_answers
from longmem_jax.evaluation.result import Result
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.reporting.paths import leaf_path
from longmem_jax.segment import read_segments, select_lanes
from longmem_jax.training.step import score_segment

if __name__ == '__main__':
    _RESET = flags.DEFINE_list('reset', [], 'Regular expressions for paths in the memory.')
    _SPLIT = flags.DEFINE_string('split', 'test', 'train, validation or test.')
    _OUTPUT = flags.DEFINE_string('output', '', 'JSON file for the results.')

KEPT, EVERYTHING = 'everything kept', 'everything reset'


def paths_of(state: Any) -> list[str]:
    """The names of all leaves of a memory."""
    return [leaf_path(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]


def reset_part(state: Any, initial: Any, part: str) -> Any:
    """`state` with the leaves of `initial` where the path matches `part`, a regular expression."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf, first: first if re.search(part, leaf_path(path)) else leaf,
        state,
        initial,
    )


def parts_of(state: Any) -> list[str]:
    """A regular expression for each part of a memory; the layers of a model are taken together.

    Parts are the states inside of a layer's state, such as a cache and a large memory. Arrays that
    belong to no such state are one part, as vectors and their count must be reset together.
    """
    inner: dict[str, None] = {}
    arrays: dict[str, dict[str, None]] = {}
    for path in paths_of(state):
        *parents, name = re.sub(r'^(?:blocks/)?block_\d+/', '', path).split('/')
        if len(parents) > 1:
            inner['(^|/)' + '/'.join(parents[:2]) + '/'] = None
        else:
            arrays.setdefault('/'.join(parents), {})[name] = None
    return [
        *inner,
        *(
            (f'(^|/){parent}/' if parent else '^') + f'({"|".join(names)})$'
            for parent, names in arrays.items()
        ),
    ]


def require_parts(state: Any, parts: list[str]) -> None:
    """Raises `UsageError` if a regular expression is wrong or matches nothing."""
    paths = paths_of(state)
    for part in parts:
        try:
            matches = [path for path in paths if re.search(part, path)]
        except re.error as error:
            raise UsageError(f'--reset={part}: not a regular expression ({error}).') from error
        if not matches:
            raise UsageError(f'--reset={part}: matches none of {", ".join(paths) or "no memory"}.')


def _score(model: Any, part: str, params: Any, initial: Any, carry: Any, batch: Batch) -> Any:
    """Reads a batch with a part reset before every segment: carry, and sums and means over it."""

    def read(carry: Any, inputs: Batch, key: jax.Array) -> Any:
        memory, errors = carry
        memory = select_lanes(inputs.start, initial, memory)
        errors = jnp.where(inputs.start, 0, errors)
        if part:
            memory = reset_part(memory, initial, part)
        inputs = inputs.replace(start=jnp.zeros_like(inputs.start))
        memory, (sums, wrong, aux) = score_segment(model, params, memory, inputs, key, train=False)
        exact, errors = exact_answers(wrong, inputs.scored, errors)
        sums |= {'exact': exact, 'answers': (inputs.scored == 2).sum(dtype=jnp.int32)}
        return (memory, errors), (sums, aux.metrics)

    carry, (sums, metrics) = read_segments(read, carry, batch, jax.random.key(0))
    return carry, jax.tree.map(lambda values: values.sum(axis=0), (sums, metrics))


def score(
    experiment: Experiment, params: Any, split: str, part: str = ''
) -> tuple[Result, dict[str, float]]:
    """Scores a split with a part of the memory reset before every segment.

    Args:
      experiment: a trained experiment.
      params: its parameters.
      split: 'train', 'validation' or 'test'.
      part: regular expression for paths in the memory; '' = nothing is reset.

    Returns:
      The result, and the mean of every metric of the layers.
    """
    model, config = experiment.evaluation_model, experiment.config.evaluate
    lanes, length = config.num_lanes, config.segment_length
    initial = fresh_state(model, params, lanes)
    step = jax.jit(functools.partial(_score, model, part))
    carry: Any = (initial, jnp.zeros((lanes,), jnp.int32))
    totals, segments = None, 0
    for batch, _ in in_order(experiment.corpus(split), lanes, length):
        carry, values = step(params, initial, carry, batch)
        values = jax.tree.map(float, values)
        totals = values if totals is None else jax.tree.map(float.__add__, totals, values)
        segments += 1
        if segments == config.max_test_segments:
            break
    sums, metrics = totals
    result = Result(
        split,
        sums,
        protocol=f'segment {length}, {lanes} lanes, reset before every segment: {part or "nothing"}',
        memory='reset' if part == '.' else 'kept',
    )
    return result, {name: value / segments for name, value in metrics.items()}


def contributions(
    experiment: Experiment, split: str, parts: list[str]
) -> dict[str, tuple[Result, dict[str, float]]]:
    """Scores a split with everything kept, each part reset, and everything reset.

    Args:
      experiment: a trained experiment.
      split: 'train', 'validation' or 'test'.
      parts: regular expressions for paths in the memory; [] = all parts of this model.

    Returns:
      Name of the row to the result of `score`.

    Raises:
      UsageError: no checkpoint, a part that matches nothing, or no memory that is carried.
    """
    if experiment.config.evaluate.context:
        raise UsageError(
            f'config.evaluate.context = {experiment.config.evaluate.context}: overlapping windows carry '
            'no memory; set --config.evaluate.context=0.'
        )
    params, _ = experiment.restore_parameters()
    state = fresh_state(experiment.evaluation_model, params, 1)
    if not jax.tree.leaves(state):
        raise UsageError('config.model: carries no memory from segment to segment.')
    require_parts(state, parts)
    rows = {KEPT: score(experiment, params, split)}
    for part in parts or parts_of(state):
        rows[f'{part} reset'] = score(experiment, params, split, part)
    rows[EVERYTHING] = score(experiment, params, split, '.')
    return rows


def table(rows: dict[str, tuple[Result, dict[str, float]]]) -> str:
    """A Markdown table of the scores, and what each loses against everything kept."""
    first = rows[KEPT][0]
    name = 'exact match' if first.answers else 'bits/byte' if first.num_bytes else 'nats/token'
    field = {'exact match': 'exact_match', 'bits/byte': 'bits_per_byte', 'nats/token': 'loss'}[name]
    lines = []
    for label, (result, _) in rows.items():
        value = getattr(result, field)
        lines.append([label, f'{value:.4f}', f'{value - getattr(first, field):+.4f}'])
    return markdown.table(['', name, 'difference'], lines)


def _main(experiment: Experiment) -> None:
    rows = contributions(experiment, _SPLIT.value, _RESET.value)
    print(table(rows))
    if _OUTPUT.value:
        content = {
            label: result.as_json() | {'metrics': metrics}
            for label, (result, metrics) in rows.items()
        }
        provenance.save(Path(_OUTPUT.value), content, [experiment.config.train.seed])


if __name__ == '__main__':
    entry.command(_main)
