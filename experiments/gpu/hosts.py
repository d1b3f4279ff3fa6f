"""SmolLM2 with a memory at a window of 512 tokens: novels by position, and keys by windows.

In all rows the decoder sees its segment, the one before, and the first tokens of the document. Memories
stand in six layers, `hippocampus` in all. So `window` is what the others must be better than, and
`whole` sees 8,192 tokens.
"""

import json
from pathlib import Path
from typing import Any

from experiments.gpu.job import Place, keep, kept, seconds_left, seeds
from experiments.gpu.trainings import NO_SAMPLE, SAVED, M, text, train
from experiments.hosts import scores
from experiments.smollm2.reading import CONTEXT, WINDOW
from experiments.smollm2.windows import LAYERS
from longmem_jax.data.documents import SPLITS

PER_WINDOW = 2000  # characters of a novel, about
WINDOWS = {1: 64, 2: 64, 4: 64, 8: 64, 16: 64, 32: 64, 64: 32, 128: 32}  # documents

WARM_UP = '--config.optimizer.warmup_steps=25'  # so that what the host knows is not lost at once
REMAT = '--config.train.remat=True'  # the scores of 30 layers are 15 GB a segment of 8 lanes

# Names to variants of `configs/host.py` and flags.
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    'window': ('memory=sinks', (f'{M}.sinks.memory_length={WINDOW}',)),
    'memorizing': (
        f'memory=memorizing,layers={LAYERS}',
        (f'{M}.memorizing.memory_size={CONTEXT}',),
    ),
    'hippocampus': ('memory=hippocampus', (f'{M}.sinks.memory_length={WINDOW}',)),
    'gated_delta_net': (f'memory=gated_delta_net,beside,layers={LAYERS}', ()),
    'infini': (f'memory=infini,beside,layers={LAYERS}', ()),
    'compressive': (f'memory=compressive,layers={LAYERS}', ()),
    'whole': (f'memory=none,context={CONTEXT}', ()),
}


def cells(tiny: bool) -> list[str]:
    """Every row, of the first seed first."""
    return seeds(list(ROWS)[: 1 if tiny else None], 3, tiny)


def _train(
    place: Place, cell: str, folder: Path, more: list[str], kind: str = ''
) -> dict[str, Any]:
    """Trains a row with its memory, and its decoder a fifth as fast."""
    row, seed = cell.split('/')
    variants, flags = kind + ROWS[row][0], ROWS[row][1]
    if place.tiny:  # a model of bytes that knows nothing
        variants, flags = kind + 'memory=local', ()
    else:
        variants += f',path={place.brought("host.gguf")},segment={WINDOW}'
        flags += (f'{M}.dtype=bfloat16',)
    flags += (WARM_UP, REMAT)
    return train(place, folder, 'host', variants, [*more, *flags], int(seed))


def reading(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """Bits per byte of novels by position, before and after 250 steps of 8,192 tokens of others."""
    seed = int(cell.rpartition('/')[2])
    flags = [*text(place, 'novels'), '--config.train.num_steps=250', SAVED]
    flags += ['--config.evaluate.max_test_segments=128']
    found = _train(place, cell, folder / 'run' / str(seed), flags)
    if place.tiny:  # a model that knew nothing before
        return found
    scores.positions(folder / 'run', [seed])
    parts = json.loads((folder / 'run' / str(seed) / 'positions.json').read_text())
    return found | {'parts': {when: dict(parts[when]['parts']) for when in ('before', 'after')}}


def keys(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """Right answers by distance, after 200 steps of documents whose keys are up to 16 windows back."""
    flags, novels, unit = [NO_SAMPLE, SAVED], folder / 'novels', PER_WINDOW
    if place.tiny:
        unit = 20
        for split in SPLITS:
            (novels / split).mkdir(parents=True, exist_ok=True)
            (novels / split / '1.txt').write_text('a word ' * 10_000)
    else:
        novels = place.brought('novels')
    for name, value in {
        'data.path': novels, 'train.num_steps': 200,
        'data.task.distances': (unit // 4, 16 * unit), 'data.task.before': unit // 2,
        'train.num_lanes': 8, 'train.segments_per_step': 4, 'evaluate.num_lanes': 32,
    }.items():  # fmt: skip
        flags.append(f'--config.{name}={value}')
    found = _train(place, cell, folder / 'run', flags, 'passkey,')
    run = scores.experiment_of(folder / 'run')
    evaluator, (params, _) = scores.evaluator_of(run), run.restore_parameters()
    right = kept(folder / 'windows.json')
    for windows, documents in ({1: 2} if place.tiny else WINDOWS).items():
        if str(windows) in right or seconds_left() <= 0:
            continue
        run.config.data.task.update(distances=(windows * unit,), eval_documents=documents)
        result, _ = evaluator.evaluate(params, run.corpus('test'), 'test')
        right[str(windows)] = result.exact_match
        keep(folder / 'windows.json', right)
        print(windows, result.exact_match, flush=True)
    return found | {'right': right}
