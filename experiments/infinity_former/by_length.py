r"""Sorting by length of the sequence, as Markdown tables and a figure (Martins et al., 2022, Fig. 3).

python -m experiments.infinity_former.by_length --output=DIR --seeds=3 MEMORY [MEMORY ...] \
    [-- --config.FIELD=VALUE ...]

Trains `configs/sorting.py:tiny,length=LENGTH,memory=MEMORY` for every length of `--lengths` and seed, in
DIR/MEMORY/LENGTH/SEED; finished runs are not repeated, and the seeds of a length are trained in one
process. MEMORY may be followed by variants, as in `compressive,equal_state`. The table has the tokens of
the answer that are right, in %, mean (minimum - maximum) over seeds, with the memory and with it reset
before every segment; then the rules that count what they see (`--mode=floors`). DIR/by_length.png draws
the same, and DIR/by_length.json has the numbers of every seed.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib.figure

from experiments import compare, floors, markdown, provenance
from experiments.options import add_seeds, make_parser, parse_with_flags, seed_flags, whole_numbers
from longmem_jax.reporting import figures

CONFIG = 'configs/sorting.py'
CEILING = 'counts: everything'


def measure(options: argparse.Namespace) -> dict[str, dict[int, list[dict]]]:
    """The numbers of `compare.run` of every seed, by memory and length; trains what is not there."""
    found: dict[str, dict[int, list[dict]]] = {}
    for memory in options.memories:
        for length in options.lengths:
            folder = options.output / memory / str(length)
            given = CONFIG, f'tiny,length={length},memory={memory}', options.flags
            for seed, numbers in compare.every_seed(*given, folder, options.seeds):
                found.setdefault(memory, {}).setdefault(length, []).append(numbers)
                accuracy = 100 * numbers['test']['accuracy']
                print(f'{memory}, {length} tokens, seed {seed}: {accuracy:.1f} %', flush=True)
    return found


def rules(options: argparse.Namespace) -> dict[str, dict[int, float]]:
    """Accuracy of every rule by length: with what it sees of the first seed's test sequences."""
    found: dict[str, dict[int, float]] = {}
    for length in options.lengths:
        folder = options.output / 'floors' / str(length)
        flags = seed_flags(options.seeds[0])
        measured = floors.measure(CONFIG, f'tiny,length={length}', flags, folder)
        for name, scores in measured['scores'].items():
            found.setdefault(name, {})[length] = scores['accuracy']
    found[CEILING] = found.pop(CEILING)
    return found


def in_short(
    found: dict[str, dict[int, list[dict]]], by_rule: dict[str, dict[int, float]]
) -> dict[str, Any]:
    """What claims are made of: numbers of all seeds by memory and length, and those of the rules."""

    def seed(numbers: dict) -> dict[str, Any]:
        shares = {split: numbers[split]['accuracy'] for split in ('test', 'reset')}
        return {name: numbers[name] for name in ('run', 'parameters', 'state_bytes')} | shares

    return {
        memory: {str(length): list(map(seed, seeds)) for length, seeds in by_length.items()}
        for memory, by_length in found.items()
    } | {'rules': by_rule}


def _span(shares: list[float]) -> str:
    """Mean (minimum - maximum) in %."""
    return markdown.span([100 * share for share in shares], 1)


def table(found: dict[str, dict[int, list[dict]]], by_rule: dict[str, dict[int, float]]) -> str:
    """A Markdown table: memories, and below them the rules."""
    lengths = list(next(iter(found.values())))
    lines = []
    for memory, by_length in found.items():
        for split, name in (('test', f'`{memory}`'), ('reset', '... reset')):
            cells = [
                _span([numbers[split]['accuracy'] for numbers in by_length[length]])
                for length in lengths
            ]
            sizes = [by_length[length][0]['state_bytes'] / 1000 for length in lengths]
            size = ' / '.join(f'{size:.0f}' for size in sizes) if split == 'test' else ''
            lines.append([name, *cells, size])
    for name, scores in by_rule.items():
        shown = [f'{100 * scores[n]:.1f}' if n in scores else '' for n in lengths]
        lines.append([name, *shown, ''])
    heads = ['', *(f'{length:,}' for length in lengths), 'kB per lane']
    return markdown.table(heads, lines)


def draw(
    found: dict[str, dict[int, list[dict]]], by_rule: dict[str, dict[int, float]], path: Path
) -> matplotlib.figure.Figure:
    """Draws accuracy by length: memories with bars from minimum to maximum, rules dashed."""
    figure, axes = figures.one_panel(8, 4.5)
    for index, (memory, by_length) in enumerate(found.items()):
        means, below, above = [], [], []
        for seeds in by_length.values():
            shares = [100 * numbers['test']['accuracy'] for numbers in seeds]
            means.append(statistics.mean(shares))
            below.append(means[-1] - min(shares))
            above.append(max(shares) - means[-1])
        axes.errorbar(
            list(by_length), means, [below, above], marker='o', capsize=3, label=memory,
            color=f'C{index}',
        )  # fmt: skip
    shades = [name for name in by_rule if name != CEILING]
    for index, name in enumerate(shades):
        scores = {n: 100 * share for n, share in by_rule[name].items() if share < 1}
        if not scores:
            continue
        grey = str(0.8 - 0.6 * index / len(shades))
        axes.plot(
            list(scores),
            list(scores.values()),
            '--',
            marker='.',
            color=grey,
            label=name,
            linewidth=1,
        )
    lengths = sorted({length for by_length in found.values() for length in by_length})
    axes.set_xscale('log', base=2)
    axes.set_xticks(lengths, [f'{length:,}' for length in lengths])
    figures.label(axes, 'tokens to sort', 'tokens of the answer right, %')
    figure.legend(loc='outside right upper', fontsize=8)
    figures.save(figure, path)
    return figure


def main(arguments: list[str]) -> dict[str, Any]:
    """Runs the command; returns what was measured."""
    parser = make_parser(__doc__)
    parser.add_argument('memories', nargs='+')
    parser.add_argument('--output', type=Path, required=True)
    add_seeds(parser)
    parser.add_argument('--lengths', type=whole_numbers, default=[256, 512, 1024])
    options = parse_with_flags(parser, arguments)
    found = measure(options)
    by_rule = rules(options)
    print(table(found, by_rule))
    draw(found, by_rule, options.output / 'by_length.png')
    provenance.save(options.output / 'by_length.json', in_short(found, by_rule), options.seeds)
    return found


if __name__ == '__main__':
    main(sys.argv[1:])
