"""DIR/smollm2.json and DIR/smollm2.md: bits per byte by position, and what is said about the gates."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments import markdown, provenance
from experiments.smollm2.inside import CLEAR
from experiments.smollm2.reading import bits
from longmem_jax import files

BORDERS = (0, 512, 2048, 4096, 8192, 16_384, 65_536)  # tokens


def by_position(found: dict[str, Any]) -> dict[str, float]:
    """Bits per byte by position in the books; 'all' and 'book N': beyond the first window."""
    length = min(len(book) for book in found['nats']) * found['segment']
    borders = [border for border in BORDERS if border < length] + [length]
    parts = {
        f'{a:,} - {b:,}': round(bits(found, a, b), 4)
        for a, b in zip(borders, borders[1:], strict=False)
    }
    first = borders[min(1, len(borders) - 2)]
    books = {
        f'book {number}': round(bits(found | {'nats': [nats], 'bytes': [size]}, first, length), 4)
        for number, (nats, size) in enumerate(zip(found['nats'], found['bytes'], strict=True))
    }
    return parts | {'all': round(bits(found, first, length), 4)} | books


def of_gates(found: dict[str, Any]) -> dict[str, float]:
    """Means over layers, and the loss by how far gates are open, in nats per token."""
    slope, error = np.asarray(found['slope']), np.asarray(found['error'])
    heads = {
        'heads': slope.size,
        'help': int((slope < -CLEAR * error).sum()),
        'harm': int((slope > CLEAR * error).sum()),
        'noise': int((abs(slope) <= CLEAR * error).sum()),
        'size of what is read': round(float(np.median(found['read'])), 3),
        'share by query': round(float(np.median(found['by_query'])), 3),
    }
    losses = {f'all at {gate}': np.mean(values) for gate, values in found['all'].items()}
    losses |= {f'helpful at {gate}': np.mean(values) for gate, values in found['helpful'].items()}
    return heads | {name: round(float(value), 4) for name, value in losses.items()}


def of_answers(found: dict[str, Any]) -> dict[str, float]:
    """Percent of right answers and nats of an answer, by the distance of what answers, in windows."""
    numbers = {
        key: np.asarray(value) for key, value in found.items() if key not in ('run', 'window')
    }
    distance, first, row = numbers['distance'] / found['window'], 0, {}
    for last in (2, 6, 10, 18, 40, 80):  # around `questions.DISTANCES` and `FAR`
        here = (distance >= first) & (distance < last)
        part = f'{first} - {last}'
        if here.any():
            row |= {f'{part}: right': 100 * numbers['right'][here].mean()}
            row |= {f'{part}: nats': numbers['nats'][here].mean()}
        first = last
    far = distance >= 1
    row |= {'questions': len(distance), 'beyond a window': int(far.sum())}
    if far.any():
        row |= {key: 100 * numbers[key][far].mean() for key in ('right', 'right without')}
        row |= {key: numbers[key][far].mean() for key in ('nats', 'nats without')}
    return {key: round(float(value), 3) for key, value in row.items()}


def collected(output: Path) -> dict[str, Any]:
    """The numbers of all finished parts, as pages show them."""
    parts: dict[str, Any] = {}
    for path in sorted(output.glob('*/*.json')):
        part, name, found = path.parent.name, path.stem, provenance.saved(path)
        rows, run = parts.setdefault(part, {}), {'run': found['run']}
        if part == 'inside':
            rows[name] = run | of_gates(found)
        elif 'distance' in found:
            rows[name] = run | of_answers(found)
        elif 'kept' in found:
            rows[name] = run | by_position(found['kept'])
            rows[f'{name} shut'] = run | by_position(found['shut'])
        else:
            rows[name] = run | by_position(found)
            if 'gates' in found:
                gates = 1 / (1 + np.exp(-np.concatenate(list(found['gates'].values()))))
                learned = {'least': gates.min(), 'mean': gates.mean(), 'largest': gates.max()}
                rows[name] |= {f'{k} gate': round(float(v), 4) for k, v in learned.items()}
    return parts


def table(rows: dict[str, Any]) -> str:
    """Rows of numbers by name; columns in the order in which they first occur."""
    columns = list(dict.fromkeys(key for row in rows.values() for key in row if key != 'run'))
    lines = [
        [f'`{name}`', *(str(row.get(key, '')) for key in columns)] for name, row in rows.items()
    ]
    return markdown.table(['row', *columns], lines)


def write(output: Path) -> str:
    """Writes both files; returns the tables."""
    parts = collected(output)
    files.write_json(output / 'smollm2.json', parts)
    text = '\n\n'.join(f'## {part}\n\n{table(rows)}' for part, rows in parts.items()) + '\n'
    files.write(output / 'smollm2.md', text)
    return text
