"""Tables and figures of `experiments.hosts`, from what is in its folder."""

import statistics
from pathlib import Path
from typing import Any

from experiments import floors, markdown, provenance
from experiments.hosts import dialogue, superglue
from experiments.hosts.scores import LOCAL, SEGMENT
from longmem_jax import files
from longmem_jax.reporting import figures


def collect(output: Path, part: str, name: str) -> dict[str, list[Any]]:
    """Memory to the files `name` of its finished seeds, `local` first."""
    found: dict[str, list[Any]] = {}
    for folder in sorted((output / part).glob('*'), key=lambda path: (path.name != LOCAL, path)):
        seeds = [provenance.saved(path) for path in sorted(folder.glob(f'*/{name}'))]
        if seeds:
            found[folder.name] = seeds
    return found


def books(output: Path) -> str:
    """Bits per byte before and after fine-tuning, by position, and what they cost."""
    found = collect(output, 'books', 'positions.json')
    numbers = collect(output, 'books', 'numbers.json')
    if not found:
        return ''
    ends = [end for end, _ in next(iter(found.values()))[0]['after']['parts']]
    begins = [0, *ends]
    parts = [f'{SEGMENT * a:,} - {SEGMENT * b:,}' for a, b in zip(begins, ends, strict=False)]
    lines = []
    for memory, seeds in found.items():
        cells = [f'`{memory}`', markdown.span([seed['before']['all'] for seed in seeds])]
        cells.append(markdown.span([seed['after']['all'] for seed in seeds]))
        cells.append(markdown.span([seed['reset']['bits_per_byte'] for seed in numbers[memory]]))
        for part in range(len(ends)):
            cells.append(markdown.span([seed['after']['parts'][part][1] for seed in seeds]))
        cost = [
            statistics.mean(n[name] for n in numbers[memory])
            for name in ('state_bytes', 'ms_per_step')
        ]
        lines.append([*cells, f'{cost[0] / 1000:,.0f}', f'{cost[1]:.0f}'])
    heads = ['memory', 'before', 'after', 'after, reset', *parts, 'state, kB', 'ms/step']
    return markdown.table(heads, lines)


def passkeys(output: Path) -> str:
    """Right answers in % by distance."""
    found = collect(output, 'passkey', 'recall.json')
    if not found:
        return ''
    distances = [row['distance'] for row in next(iter(found.values()))[0]]
    lines = []
    for memory, seeds in found.items():
        for name, label in (('kept', f'`{memory}`'), ('reset', '... reset')):
            shares = [[100 * row[name] for row in column] for column in zip(*seeds, strict=True)]
            lines.append([label, *(markdown.span(values, 0) for values in shares)])
    return markdown.table(['memory', *(f'{distance:,}' for distance in distances)], lines)


def pairs(output: Path) -> str:
    """Minimal pairs in % by field."""
    named = {'the host': provenance.saved(output / 'host/blimp.json')}
    for folder in sorted((output / 'books').glob('*/0')):
        named[f'`{folder.parent.name}`'] = provenance.saved(folder / 'blimp.json')
    rows = {name: found['checkpoints'][-1] for name, found in named.items() if found}
    if not rows:
        return ''
    fields = list(next(iter(rows.values()))['field'])
    lines = []
    for name, row in rows.items():
        shares = [row['overall']['paradigms'], *row['field'].values()]
        lines.append([name, *(f'{100 * share:.1f}' for share in shares)])
    return markdown.table(['', 'all paradigms', *fields], lines)


def draw(output: Path) -> None:
    """Gain over `local` by position, and right answers by distance."""
    found = collect(output, 'books', 'positions.json')
    if LOCAL in found and len(found) > 1:
        figure, axes = figures.one_panel(7, 4)
        base = _means(found.pop(LOCAL), lambda seed: [bits for _, bits in seed['after']['parts']])
        for memory, seeds in found.items():
            ends = [SEGMENT * end for end, _ in seeds[0]['after']['parts']]
            bits = _means(seeds, lambda seed: [bits for _, bits in seed['after']['parts']])
            gain = [a - b for a, b in zip(base, bits, strict=True)]
            axes.plot(ends, gain, marker='o', label=memory)
        axes.axhline(0, color='gray', linestyle=':')
        axes.set_xscale('log', base=2)
        axes.set_xticks(ends, [f'to {end:,}' for end in ends])
        figures.label(axes, 'position in the book, tokens', f'bits/byte fewer than {LOCAL}')
        figure.legend(loc='outside right upper', fontsize=8)
        figures.save(figure, output / 'positions.png')
    found = collect(output, 'passkey', 'recall.json')
    if found:
        figure, axes = figures.one_panel(7, 4)
        for memory, seeds in found.items():
            distances = [row['distance'] for row in seeds[0]]
            shares = _means(seeds, lambda seed: [100 * row['kept'] for row in seed])
            axes.plot(distances, shares, marker='o', label=memory)
        axes.axhline(10, color='gray', linestyle=':', label='guessing')
        axes.set_xscale('log', base=2)
        axes.set_xticks(distances, [f'{distance:,}' for distance in distances])
        figures.label(axes, 'characters between key and question', 'right answers, %')
        axes.set_ylim(-3, 103)
        figure.legend(loc='outside right upper', fontsize=8)
        figures.save(figure, output / 'passkey.png')


def _means(seeds: list[Any], values: Any) -> list[float]:
    """Means over seeds, item by item."""
    return [statistics.mean(column) for column in zip(*map(values, seeds), strict=True)]


def write(output: Path) -> str:
    """Writes hosts.md and the figures; returns the text."""
    draw(output)
    counted = provenance.saved(output / 'floors/floors.json')
    parts = {
        'Bits per byte': books(output),
        'Without a learned memory': floors.table(counted) if counted else '',
        'Keys in prose': passkeys(output),
        'Minimal pairs': pairs(output),
        'Dialogues': dialogue.table(output),
        'SuperGLUE': superglue.table(output),
    }
    text = '\n\n'.join(f'## {title}\n\n{part}' for title, part in parts.items() if part) + '\n'
    files.write(output / 'hosts.md', text)
    return text
