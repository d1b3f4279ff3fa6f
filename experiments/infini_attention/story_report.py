"""Table, figure, and the thesis' second and third question, from the cells of `stories`."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from experiments import markdown, provenance
from experiments.infini_attention.story_scores import FAR, KINDS
from longmem_jax import files
from longmem_jax.reporting import figures

FILE = 'stories'
KEPT = 200  # steps between looks that are published
NEAR_END = 0.1  # betas have settled when no more than this share of their way is left

Found = dict[str, dict[str, dict[str, Any]]]  # row to seed to cell


def collect(output: Path) -> Found:
    """The cells of a folder; those of `stories.json` too, where there is no newer one.

    Those of the folder are made shorter: 'betas' says how they went, and every `KEPT` steps are kept.
    """
    brought = output / f'{FILE}.json'
    found: Found = provenance.saved(brought) or {}
    for path in sorted(output.glob('*/*.json')):
        cell = json.loads(path.read_text())
        cell['betas'] = _of_betas(cell)
        cell['course'] = [look for look in cell['course'] if look['step'] % KEPT == 0]
        found.setdefault(path.parent.name, {})[path.stem] = _rounded(cell)
    return {name: found[name] for name in sorted(found, key=_place)}


def _rounded(tree: Any) -> Any:
    """The tree with three decimals."""
    if isinstance(tree, dict):
        return {name: _rounded(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_rounded(value) for value in tree]
    return round(tree, 3) if isinstance(tree, float) else tree


def _place(name: str) -> tuple[int, int]:
    kind, length = name.rsplit('_', 1)
    return ('local', 'infini', 'tuned', 'alone', 'steady').index(kind), int(length)


def facts(cell: dict[str, Any], memory: str = 'kept', which: str = 'facts') -> float:
    """Words that repeat a fact and are predicted, in %."""
    value = cell['scores'][memory]['accuracy'][which]
    return float('nan') if value is None else value


def table(found: Found) -> str:
    """Scores by row: mean (smallest - largest) of the seeds."""
    heads = [
        'row', 'seeds', 'bits per token', 'facts, %', 'facts, memory reset',
        'told by earlier segments alone', 'the same, reset', 'pairs in a story',
        *(f'pairs, {kind}' for kind in KINDS),
    ]  # fmt: skip
    lines = []
    for name, seeds in found.items():
        cells = list(seeds.values())

        def span(values: list[float]) -> str:
            return '' if np.isnan(values).any() else markdown.span(values, 1)

        lines.append(
            [
                f'`{name}`',
                str(len(cells)),
                markdown.span([cell['scores']['kept']['bits'] for cell in cells]),
                span([facts(cell) for cell in cells]),
                span([facts(cell, 'reset') for cell in cells]),
                span([facts(cell, 'kept', 'beyond') for cell in cells]),
                span([facts(cell, 'reset', 'beyond') for cell in cells]),
                span([cell['scores']['kept']['pairs']['facts'] for cell in cells]),
                *(span([cell['sentences'][kind] for cell in cells]) for kind in KINDS),
            ]
        )
    return markdown.table(heads, lines)


def given_back(found: Found) -> dict[str, dict[str, float]]:
    """Of the facts that a shorter segment loses, what the memory gives back, in %: row to seed to share.

    The loss is that of a model without the memory against `local` with the longest segment. Without the
    memory is `local` with the segment; of fine-tuning it is `alone` where that was run, which has had
    the same steps.
    """
    longest, shares = found.get('local_512', {}), dict[str, dict[str, float]]()
    for name, seeds in found.items():
        kind, length = name.rsplit('_', 1)
        alone = found.get(f'alone_{length}', {}) if kind == 'tuned' else {}
        shorter = alone or found.get(f'local_{length}', {})
        for seed in seeds if kind in ('infini', 'tuned') else ():
            if seed in longest and seed in shorter:
                floor = facts(shorter[seed])
                lost = facts(longest[seed]) - floor
                shares.setdefault(name, {})[seed] = 100 * (facts(seeds[seed]) - floor) / lost
    return shares


def course_of_betas(cell: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Steps, int [looks]; and betas, float64 [looks, blocks, heads]."""
    looks = [look for look in cell['course'] if look['betas']]
    return (
        np.asarray([look['step'] for look in looks]),
        np.asarray([list(look['betas'].values()) for look in looks], np.float64),
    )


def settled(steps: np.ndarray, values: np.ndarray) -> int:
    """The first step from which on no more than `NEAR_END` of the way to the last betas is left."""
    left = np.abs(values - values[-1]).mean((1, 2))
    outside = np.flatnonzero(left > NEAR_END * left[0])
    return int(steps[outside[-1] + 1]) if len(outside) else int(steps[0])


def _of_betas(cell: dict[str, Any]) -> dict[str, float]:
    """How the betas of a cell went: means of the heads, and the step at which they had settled."""
    steps, values = course_of_betas(cell)
    if not len(steps):
        return {}
    last = values[-1].mean(1)
    return {
        'before': float(values[0].mean()),
        **{f'layer {layer}': float(mean) for layer, mean in enumerate(last, 1)},
        'moved': float(np.abs(values[-1] - values[0]).mean()),
        'settled': settled(steps, values),
        'steps': int(steps[-1]),
    }


def betas_table(found: Found) -> str:
    """Mean betas before and after, by layer, how far each moved, and when they had settled."""
    rows = {name: [cell['betas'] for cell in seeds.values()] for name, seeds in found.items()}
    rows = {name: cells for name, cells in rows.items() if all(cells)}
    columns = list(next(iter(rows.values()))[0]) if rows else []
    lines = []
    for name, cells in rows.items():
        digits = {'settled': 0, 'steps': 0}
        spans = [markdown.span([cell[c] for cell in cells], digits.get(c, 2)) for c in columns]
        lines.append([f'`{name}`', *spans])
    return markdown.table(['beta', *columns], lines)


def draw(found: Found, path: Path) -> None:
    """Facts by tokens since they were last read, and betas over training."""
    figure = figures.figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    bins = [f'from {low + 1}' for low in (0, *FAR)]
    colours = {'32': 'C0', '64': 'C1', '128': 'C2', '256': 'C3', '512': 'C4'}
    styles = {'local': ':', 'infini': '-', 'tuned': '--'}
    for name, seeds in found.items():
        kind, length = name.rsplit('_', 1)
        if kind not in styles:
            continue
        means = [
            statistics.mean(facts(cell, which=which) for cell in seeds.values()) for which in bins
        ]
        left.plot(range(len(bins)), means, styles[kind], color=colours[length], label=name)
        if kind == 'local':
            continue
        courses = [course_of_betas(cell) for cell in seeds.values()]
        values = np.mean([values for _, values in courses], 0)
        for block, width in zip(range(values.shape[1]), (1, 2.5), strict=False):
            mean = values[:, block].mean(1)
            right.plot(courses[0][0], mean, styles[kind], color=colours[length], linewidth=width)
    left.set_xticks(range(len(bins)), [f'1-{FAR[0]}', *(f'{n + 1}+' for n in FAR)])
    figures.label(left, 'tokens since the word was last read', 'facts that are predicted, %')
    figure.legend(loc='outside right upper', fontsize=7)
    figures.label(right, 'step', 'beta, mean of the heads (thin: layer 1)')
    figures.save(figure, path)


def write(output: Path) -> str:
    """Writes stories.json, .md and .png of a folder; returns the tables."""
    found = collect(output)
    back = [
        f'`{name}` gives back {markdown.span(list(shares.values()), 0)} % of the facts lost.'
        for name, shares in given_back(found).items()
    ]
    text = '\n\n'.join([table(found), betas_table(found), '\n'.join(back)])
    files.write_json(output / f'{FILE}.json', found, indent=None)
    files.write(output / f'{FILE}.md', text + '\n')
    draw(found, output / f'{FILE}.png')
    return text
