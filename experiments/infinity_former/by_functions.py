r"""Sorting, and the fit inside, by the number of basis functions (Martins et al., 2022, Fig. 3, right).

python -m experiments.infinity_former.by_functions --output=DIR --seeds=3 [--functions=4,8,16] \
    [-- --config.FIELD=VALUE ...]

Trains `configs/sorting.py:tiny` for every number of functions N and seed in DIR/N/SEED; finished runs
are not repeated. Then every run reads `SEQUENCES` sequences of the test. DIR/by_functions.json and
DIR/functions.png have the tokens of the answer that are right, and the relative squared error of the fit
to what the last layer of that run writes. Beside them is how well the regression of an update is posed:
its degrees of freedom, and the largest factor by which it makes coefficients of vectors.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np

from experiments import compare, markdown, provenance
from experiments.analysis import memory_positions
from experiments.analysis.continuous_memory import read_text, regression_errors
from experiments.infinity_former.by_length import CONFIG
from experiments.options import add_seeds, make_parser, parse_with_flags, whole_numbers
from longmem_jax.commands.load import load
from longmem_jax.config.saved import saved_config
from longmem_jax.data.tasks.sorting import Sorting
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.reporting import figures

FUNCTIONS = (4, 8, 16, 32, 64, 128, 256)
SEQUENCES = 8
SHARES = {'test': 'tokens', 'reset': 'tokens, reset', 'whole': 'whole answers'}
ERRORS = ('first write', 'later writes')


def few(functions: int) -> list[str]:
    """Flags for so few functions that 64 samples are refused: fewer samples, wide enough for them."""
    settings = 'config.model.infinity_former'
    if functions >= 8:
        return []
    return [f'--{settings}.num_samples={8 * functions}', f'--{settings}.widths=(0.021,0.05)']


def posed(fields: dict[str, Any]) -> dict[str, float]:
    """How well the regression of an update is posed; `fields` are those of the layer.

    Returns:
      `degrees_of_freedom`: the trace of the matrix that maps vectors to their fit; `gain`: the spectral
      norm of the matrix that maps vectors to coefficients, large where functions cancel each other.
    """
    length, samples, widths = fields['write_length'], fields['num_samples'], tuple(fields['widths'])
    sizes = (samples, fields['tau'], fields['ridge'], fields['num_basis'], widths)
    _, matrix = continuous.fit_matrices(length, *sizes, fields['padding'])
    positions = continuous.update_positions(length, samples, fields['tau'])
    psi = continuous.psi64(positions, *continuous.gaussian_basis(fields['num_basis'], widths))
    return {
        'degrees_of_freedom': float((psi * matrix).sum()),
        'gain': float(np.linalg.norm(matrix, 2)),
    }


def inside(folder: Path) -> dict[str, float]:
    """Errors of the fit to what the last layer of a finished run writes, means over sequences."""
    model, params, tokenizer = load(folder)
    data = saved_config(folder).data
    corpus = Sorting(data.task, 'test', data.seed)
    fields = memory_positions.fields_of(model)
    found: dict[str, list[float]] = {name: [] for name in ERRORS}
    for number in range(SEQUENCES):
        tokens = np.concatenate([[tokenizer.begin], corpus[number].tokens]).astype(np.int32)
        # What is in the short-term memory in the end is not written.
        vectors = read_text(model, params, tokens).written[-1, : -fields['memory_length']]
        errors = regression_errors(vectors, fields, (fields['num_basis'],))
        for name in ERRORS:
            found[name] += errors[name]
    return {name: statistics.mean(values) for name, values in found.items()} | posed(fields)


def measure(options: argparse.Namespace) -> dict[str, list[dict]]:
    """Numbers of every seed by the number of functions; trains what is not there."""
    found: dict[str, list[dict]] = {}
    for functions in options.functions:
        given = [f'--config.model.infinity_former.num_basis={functions}', *few(functions)]
        given += options.flags
        folder = options.output / str(functions)
        for seed, numbers in compare.every_seed(CONFIG, 'tiny', given, folder, options.seeds):
            row = {'run': numbers['run'], 'state_bytes': numbers['state_bytes']}
            row |= {split: numbers[split]['accuracy'] for split in ('test', 'reset')}
            row |= {'whole': numbers['test']['exact_match']} | inside(folder / str(seed))
            found.setdefault(str(functions), []).append(row)
            print(f'{functions} functions, seed {seed}: {100 * row["test"]:.1f} %', flush=True)
    return found


def table(found: dict[str, list[dict]]) -> str:
    """A Markdown table."""
    lines = []
    for functions, seeds in found.items():
        cells = [markdown.span([100 * row[name] for row in seeds], 1) for name in SHARES]
        cells += [markdown.span([row[name] for row in seeds], 2) for name in ERRORS]
        first = seeds[0]
        size = first['state_bytes'] / 1000
        cells += [f'{first["degrees_of_freedom"]:.0f}', f'{first["gain"]:.2f}', f'{size:.0f}']
        lines.append([functions, *cells])
    shares = [f'{name}, %' for name in SHARES.values()]
    errors = [f'error, {name}' for name in ERRORS]
    rest = ['degrees of freedom', 'gain', 'state, kB per lane']
    return markdown.table(['functions', *shares, *errors, *rest], lines)


def draw(found: dict[str, list[dict]], path: Path) -> matplotlib.figure.Figure:
    """Draws accuracy (left axis) and error of the fit (right); bars from minimum to maximum."""
    figure, axes = figures.one_panel(7, 4.5)
    right = axes.twinx()
    curves = [(axes, 'test', 100, 'tokens of the answer right')]
    curves += [(right, name, 1, f'error of the fit, {name}') for name in ERRORS]
    for index, (side, name, scale, label) in enumerate(curves):
        values = [[scale * row[name] for row in seeds] for seeds in found.values()]
        means = [statistics.mean(seeds) for seeds in values]
        below = [mean - min(seeds) for mean, seeds in zip(means, values, strict=True)]
        above = [max(seeds) - mean for mean, seeds in zip(means, values, strict=True)]
        style = dict(marker='o' if side is axes else 's', capsize=3, color=f'C{index}')
        side.errorbar(list(map(int, found)), means, [below, above], label=label, **style)
    axes.set_xscale('log', base=2)
    axes.set_xticks(list(map(int, found)), list(found))
    figures.label(axes, 'basis functions', 'tokens of the answer right, %')
    right.set_ylabel('relative squared error')
    right.set_ylim(bottom=0)
    figure.legend(loc='outside upper center', ncols=3, fontsize=8)
    figures.save(figure, path)
    return figure


def main(arguments: list[str]) -> dict[str, list[dict]]:
    """Runs the command; returns what was measured."""
    parser = make_parser(__doc__)
    parser.add_argument('--output', type=Path, required=True)
    add_seeds(parser)
    parser.add_argument('--functions', type=whole_numbers, default=list(FUNCTIONS))
    options = parse_with_flags(parser, arguments)
    found = measure(options)
    print(table(found))
    draw(found, options.output / 'functions.png')
    provenance.save(options.output / 'by_functions.json', found, options.seeds)
    return found


if __name__ == '__main__':
    main(sys.argv[1:])
