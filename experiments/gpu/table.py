"""The tables of what was measured, and the page with them."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments import markdown, provenance
from experiments.gpu.job import ABSENT, FAILED, STOPPED, Cell, Job, Place
from experiments.gpu.jobs import JOBS
from longmem_jax import files

PAGE = Path(__file__).with_name('numbers.md')
NUMBERS = PAGE.with_name('gpu.json')  # what the page shows: label of a cell to its result
RENDERED = re.compile(r'(?<=<!-- tables -->\n).*(?=<!-- end of tables -->)', re.DOTALL)
Found = dict[str, dict[str, Any]]


def published() -> Found:
    """The results of the page; {} = nothing was run yet."""
    return provenance.saved(NUMBERS) or {}


def collect(place: Place) -> Found:
    """The finished cells of a folder by their labels."""
    cells = (cell for job in JOBS.values() for cell in job.all(place.tiny))
    results = ((cell.label, cell.result(place)) for cell in cells)
    return {label: result for label, result in results if result}


def overview(found: Found, place: Place | None) -> str:
    """One line per job: its question, how much of it is there, and what is said of the rest."""
    lines = []
    for number, job in enumerate(JOBS.values(), 1):
        cells = job.all(bool(place and place.tiny))
        done = [found[cell.label] for cell in cells if cell.label in found]
        state = f'{len(done)} of {len(cells)} cells' if done else 'not run'
        said = [state, *(_said(cells, place) if place else ())]
        runs = {each['run']['device'] for each in done}
        dates = sorted(each['run']['date'][:10] for each in done)
        lines.append([
            str(number), f'`{job.name}`', job.question, f'{job.minutes:g}', '; '.join(said),
            ', '.join(sorted(runs)), ' to '.join(dict.fromkeys((*dates[:1], *dates[-1:]))),
        ])  # fmt: skip
    heads = ['', 'job', 'question', 'minutes of a cell', 'result', 'device', 'date']
    return markdown.table(heads, lines)


def _said(cells: Iterable[Cell], place: Place) -> list[str]:
    """What the notes say: why cells are not there, and how many."""
    said: dict[str, int] = {}
    for note in (cell.note(place) for cell in cells):
        if note['state'] in (STOPPED, FAILED, ABSENT):
            words = note['said'] if note['state'] == ABSENT else note['state']
            said[words] = said.get(words, 0) + 1
    return [f'{number} {words}' for words, number in said.items()]


def of_job(job: Job, found: Found) -> str:
    """The numbers of a job; a line per cell, of seeds the mean (smallest - largest)."""
    lines: dict[str, list[Any]] = {}
    order = {cell.label: number for number, cell in enumerate(job.all(tiny=False))}
    labels = (label for label in found if label.startswith(f'{job.name}/'))
    for label in sorted(labels, key=lambda label: order.get(label, len(order))):
        name = label.removeprefix(f'{job.name}/')
        row = name.rpartition('/')[0] if job.seeded else name
        lines.setdefault(row, []).append(found[label])
    columns = [
        (head, {row: _shown(results, path, form) for row, results in lines.items()})
        for head, path, form in job.shown
    ]
    columns = [(head, cells) for head, cells in columns if any(cells.values())]
    heads = [job.name, *['seeds'] * job.seeded, *(head for head, _ in columns)]
    return markdown.table(heads, [
        [row, *[str(len(results))] * job.seeded, *(cells[row] for _, cells in columns)]
        for row, results in lines.items()
    ])  # fmt: skip


def _shown(results: list[Any], path: str, form: str) -> str:
    """The numbers at a path of the results of a line; '' where there are none."""
    values = [value for result in results if (value := _at(result, path)) is not None]
    if not values:
        return ''
    ends = (sum(values) / len(values), min(values), max(values))
    mean, low, high = (format(value, form) for value in ends)
    return mean if low == high else f'{mean} ({low} - {high})'


def _at(result: Any, path: str) -> float | None:
    for key in path.split('.'):
        if not isinstance(result, dict) or result.get(key) is None:
            return None
        result = result[key]
    return result


def tables(found: Found, place: Place | None = None) -> str:
    """The overview, and a table for every job of which there are numbers."""
    several = [
        of_job(job, found)
        for job in JOBS.values()
        if any(k.startswith(f'{job.name}/') for k in found)
    ]
    return '\n\n'.join([overview(found, place), *several]) + '\n'


def publish(place: Place) -> None:
    """Adds the finished cells of a folder to the numbers of the page, and renders it."""
    found = published() | collect(place)
    if found:
        files.write_json(NUMBERS, found)
    files.write(PAGE, RENDERED.sub(lambda _: tables(found), PAGE.read_text()))
