"""The table and the figure of the second reading, from the cells of a folder."""

import statistics
from pathlib import Path
from typing import Any

from experiments import markdown, provenance
from experiments.second_reading import rows
from longmem_jax import files
from longmem_jax.reporting import figures

FLOORS = 'floors'
FILE = 'second_reading'

Found = dict[str, dict[str, dict[str, Any]]]  # row to seed to cell


def collect(output: Path) -> Found:
    """The cells of a folder; those of `second_reading.json` too, where there is no newer one."""
    brought = output / f'{FILE}.json'
    found: Found = provenance.read(brought) if brought.exists() else {}
    for path in sorted(output.glob('*/*.json')):
        name = path.parent.name
        if name == FLOORS:
            found[name] = {path.stem: provenance.read(path)}
        elif name in rows.names():  # other folders are not of this experiment
            found.setdefault(name, {})[path.stem] = provenance.read(path, 'flags', 'bits')
    return found


def saved(cells: dict[str, dict[str, Any]]) -> dict[int, list[float]]:
    """Bits per byte that the second copy saves: length to one number per seed.

    A seed that was not tested at a length, since it saved nothing at shorter ones, counts with what it
    saved at the last: means of the seeds that were tested would leave out those that failed.
    """
    seeds = [
        {int(n): bits['first'] - bits['second'] for n, bits in cell['bits'].items()}
        for cell in cells.values()
    ]
    lengths = sorted({length for seed in seeds for length in seed})
    return {
        n: [seed[max(at for at in seed if at <= n)] for seed in seeds if min(seed) <= n]
        for n in lengths
    }


def tested(cells: dict[str, dict[str, Any]], length: int) -> int:
    """Seeds that were tested at a length."""
    return sum(str(length) in cell['bits'] for cell in cells.values())


def kilobytes(cells: dict[str, dict[str, Any]]) -> str:
    """Bytes of what one text carries from segment to segment."""
    size = next(iter(cells.values()))['state_bytes'] / 1000
    return f'{size:,.0f}' if size >= 100 else f'{size:.3g}'


def _order(found: Found) -> list[str]:
    """The memories that were run, in the order of `rows.SHOWN`."""
    names = [name for name in found if name != FLOORS]
    return sorted(names, key=lambda n: (rows.SHOWN.index(n) if n in rows.SHOWN else 99, n))


def table(found: Found) -> str:
    """Bits per byte saved by row and length: mean (smallest - largest) of the seeds."""
    names = _order(found)
    lengths = sorted({length for name in names for length in saved(found[name])})
    heads = ['memory', 'state, kB', 'seeds', 'first copy', *(f'{n:,} B' for n in lengths)]
    lines = []
    for name in names:
        cells, by_length = found[name], saved(found[name])
        first = [bits['first'] for cell in cells.values() for bits in cell['bits'].values()]
        lines.append(
            [
                f'`{name}`',
                kilobytes(cells),
                str(len(cells)),
                f'{statistics.mean(first):.2f}',
                *(_saved(by_length.get(n, []), tested(cells, n)) for n in lengths),
            ]
        )
    for name, by_length in _rules(found).items():
        values = {int(n): bits['first'] - bits['second'] for n, bits in by_length.items()}
        first = statistics.mean(bits['first'] for bits in by_length.values())
        shown = [f'{values[n]:.2f}' if n in values else 'not run' for n in lengths]
        lines.append([name, '', '', f'{first:.2f}', *shown])
    return markdown.table(heads, lines)


def _saved(values: list[float], run: int) -> str:
    """What the seeds saved at a length, and how many of them were tested, if not all."""
    if not values:
        return 'not run'
    some = f' [{run} of {len(values)}]' if run < len(values) else ''
    return markdown.span(values, 2) + some


def _rules(found: Found) -> dict[str, Any]:
    """The rules that need no model."""
    cells = found.get(FLOORS, {})
    return {n: v for cell in cells.values() for n, v in cell.items() if n not in ('run', 'flags')}


def draw(found: Found, path: Path) -> None:
    """Bits per byte saved against the length of a copy, a line per memory.

    A point is hollow where some seeds were not tested any more.
    """
    figure, axes = figures.one_panel(8.4, 4.6)
    colours = [*(f'C{number}' for number in range(10)), 'black']
    for place, name in enumerate(_order(found)):
        by_length = saved(found[name])
        lengths, colour = list(by_length), colours[place % 11]
        mean = [statistics.mean(values) for values in by_length.values()]
        label = f'{name}, {kilobytes(found[name])} kB'
        style = '-' if place < 10 else '-.'
        axes.plot(lengths, mean, style, marker='o', markersize=4, color=colour, label=label)
        some = [n for n in lengths if tested(found[name], n) < len(found[name])]
        hollow = [statistics.mean(by_length[n]) for n in some]
        axes.plot(some, hollow, 'o', markersize=4, color=colour, markerfacecolor='white')
        low, high = zip(*((min(v), max(v)) for v in by_length.values()), strict=True)
        axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    for name, style in zip(_rules(found), (':', '--'), strict=False):
        by_length = _rules(found)[name]
        points = {int(n): bits['first'] - bits['second'] for n, bits in by_length.items()}
        axes.plot(list(points), list(points.values()), style, color='0.4', label=name)
    axes.axhline(0, color='0.7', linewidth=0.8)
    axes.set_xscale('log', base=2)
    ticks = sorted({n for name in _order(found) for n in saved(found[name])})
    axes.set_xticks(ticks, [f'{n} B' if n < 1024 else f'{n // 1024} kB' for n in ticks])
    figures.label(
        axes,
        'length of the text; then it is read again',
        'bits per byte saved on the second reading',
    )
    figure.legend(loc='outside right upper', fontsize=8, title='memory, state of one text')
    figures.save(figure, path)


def write(output: Path) -> str:
    """Writes second_reading.json, .md and .png of a folder; returns the table."""
    found = collect(output)
    text = table(found)
    files.write_json(output / f'{FILE}.json', found)
    files.write(output / f'{FILE}.md', text + '\n')
    draw(found, output / f'{FILE}.png')
    return text
