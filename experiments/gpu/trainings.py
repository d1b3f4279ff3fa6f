"""Trainings of the suite: language models, tests at great lengths, the second reading."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

from experiments import compare
from experiments.gpu.job import Place, keep, kept, memories, seconds_left, seeds
from experiments.hosts import scores
from experiments.second_reading import rows
from experiments.second_reading.__main__ import LENGTHS, Runs
from longmem_jax.data import load

M = '--config.model'
SAVED = '--config.checkpoint.every=500'
# What a training is cut to where it is only to be seen that it runs.
TINY = [
    '--config.train.num_steps=2', '--config.train.log_every=1', '--config.train.evaluate_every=2',
    '--config.evaluate.max_segments=8', '--config.evaluate.max_test_segments=8',
]  # fmt: skip
NO_SAMPLE = '--config.generate.sample_length=0'
KEPT = ('test', 'reset', 'parameters', 'state_bytes', 'memory_size', 'ms_per_step')


def train(
    place: Place, folder: Path, config: str, variants: str, flags: list[str], seed: int
) -> dict[str, Any]:
    """Trains by `longmem_jax.main`, or continues with it; numbers of test, and with the memory reset."""
    flags = [*flags, *(TINY if place.tiny else [])]
    tiny = [] if not place.tiny or 'tiny' in variants.split(',') else ['tiny']
    given = ','.join([*tiny, variants])
    numbers = compare.run(f'configs/{config}.py', given, flags, seed, folder)
    return {name: numbers[name] for name in KEPT}


def text(place: Place, *names: str) -> list[str]:
    """Flags that read one or several folders of the data, and test every part of a document."""
    if place.tiny and not (place.data / names[0]).exists():
        return ['--config.data.source=stdlib', NO_SAMPLE]
    path = place.brought(names[0])
    if len(names) > 1:
        path = together(place, *names)
    return [
        '--config.data.source=text', f'--config.data.path={path}', '--config.data.pieces=16',
        '--config.evaluate.max_segments=32', '--config.evaluate.max_test_segments=512', NO_SAMPLE,
    ]  # fmt: skip


def together(place: Place, *names: str) -> Path:
    """Several folders of the data as one, which is made once."""
    path = place.output / '+'.join(names)
    if not path.exists():
        partial = path.with_name(f'{path.name}.partial')
        shutil.rmtree(partial, ignore_errors=True)
        for name in names:
            shutil.copytree(place.brought(name), partial, dirs_exist_ok=True)
        partial.rename(path)
    return path


def language_cells(tiny: bool) -> list[str]:
    """Every memory with one seed at the smaller size, then the other seeds, then the larger size."""
    sizes = ('38M',) if tiny else ('38M', '116M')
    return [f'{size}/{cell}' for size in sizes for cell in seeds(memories(tiny), 3, tiny)]


def language(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """A language model of bytes; bits per byte of the parts of test documents."""
    size, memory, seed = cell.split('/')
    variants = f'memory={memory}' + ',large' * (size == '116M')
    flags = [*text(place, 'novels', 'code'), '--config.train.num_steps=1500', SAVED]
    flags += ['--config.optimizer.warmup_steps=150', '--config.train.evaluate_every=500']
    found = train(place, folder / 'run', 'comparison', variants, flags, int(seed))
    return found | {'parts': {str(end): bits for end, bits in after(folder / 'run')['parts']}}


def after(folder: Path) -> dict[str, Any]:
    """Bits per byte by position of a finished training."""
    run = scores.experiment_of(folder)
    params, _ = run.restore_parameters()
    return scores.by_position(run, scores.evaluator_of(run), params)


# Without those that need word lists.
TASKS = ('babilong/qa1', 'ruler/vt', 'ruler/fwe', 'babilong/qa2', 'babilong/qa3')
LONG = {4096: 64, 16_384: 64, 65_536: 32, 262_144: 8, 1_048_576: 8, 10_000_000: 2}  # documents


def long_cells(tiny: bool) -> list[str]:
    """Every task with every memory."""
    names = [
        f'{task}/{memory}' for task in TASKS[: 2 if tiny else None] for memory in memories(tiny)
    ]
    return seeds(names, 3, tiny)


def long(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """Right answers of a model that was trained on 4,096 tokens, in texts of up to ten million."""
    config, task, memory, seed = cell.split('/')
    flags = ['--config.train.num_steps=4000', '--config.train.evaluate_every=2000']
    flags += [NO_SAMPLE, SAVED]
    if config == 'ruler':
        flags += ['--config.data.task.lengths=(512,1024,4096)'] * (not place.tiny)
    elif not place.tiny:
        flags += [f'--config.data.path={place.brought("novels")}']
    variants = f'task={task},memory={memory}'
    found = train(place, folder / 'run', config, variants, flags, int(seed))
    run = scores.experiment_of(folder / 'run')
    evaluator, (params, _) = scores.evaluator_of(run), run.restore_parameters()
    right, rate = kept(folder / 'lengths.json'), 0.0
    for length, documents in ({512: 2} if place.tiny else LONG).items():
        if str(length) in right:
            continue
        if rate * length * documents > seconds_left():
            break
        began = time.monotonic()
        run.config.data.task.update(lengths=(length,), eval_documents=documents)
        result, _ = evaluator.evaluate(params, run.corpus('test'), 'test')
        right[str(length)] = result.exact_match
        rate = (time.monotonic() - began) / (length * documents)
        keep(folder / 'lengths.json', right)
        print(length, result.exact_match, flush=True)
    return found | {'right': right}


def second_cells(tiny: bool) -> list[str]:
    """The memories of the page of the second reading, and then the others."""
    names = list(dict.fromkeys([*rows.SHOWN, *memories(False)]))
    return seeds(names[: 1 if tiny else None], 3, tiny)


def second(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """Bits per byte saved on a second reading after 30 million tokens of training."""
    name, seed = cell.split('/')
    flags = [f'--config.train.num_steps={2 if place.tiny else 10_000}']
    tokens = folder.parents[1] / 'tokens'
    tokens.mkdir(exist_ok=True)
    data = rows.config_of(rows.BASELINE, flags).data
    load.make_tokenizer(data, tokens)  # learned once for all cells
    (path,) = tokens.glob('tokenizer.*.json')
    flags.append(f'--config.data.tokenizer.path={path}')
    lengths = [128] if place.tiny else list(LENGTHS)
    Runs(name, rows.config_of(name, flags), folder).run(int(seed), lengths, [*rows.row(name).flags])
    found = json.loads((folder / f'{seed}.json').read_text())
    found['saved'] = {n: bits['first'] - bits['second'] for n, bits in found['bits'].items()}
    found.pop('run')
    return found
