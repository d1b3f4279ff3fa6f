"""A host learns to tell keys in short texts, and is asked for keys in long ones, by the same memory.

The keys of training are given in other novels, with other numbers, and all of a text is within some
1,000 tokens. Low-rank parts of queries and values learn, or a memory with them; the host does not.
"""

import gc
from pathlib import Path
from typing import Any, NamedTuple

from experiments import provenance
from experiments.smollm2 import questions, reading
from experiments.smollm2.reading import CONTEXT, WINDOW

GATES = 6  # times the rate that gates of a memory have in a host
TINY = {'data.task.num_keys': 2, 'data.task.before': 9, 'data.task.distances': (2, 20)}


class Row(NamedTuple):
    """A host that practises.

    Attributes:
      variants: of `configs/host.py`, after `practice`.
      fields: that differ in training.
      asked: rows that are asked with the parameters that have learned: variants and fields.
    """

    variants: str
    fields: dict[str, Any]
    asked: dict[str, tuple[str, dict[str, Any]]]


def rows(window: int, context: int, layers: str) -> dict[str, Row]:
    """Names to rows. `layers`: those with `memorizing`."""
    held, room, quarter = 'model.chunk_retrieval.memory_length', context + window, window // 4
    whole = f'segment={window},lora=8'
    blocks, everything = f'memory=moba,{whole}', f'memory=none,{whole},context={context}'
    asked = {'blocks': (blocks, {held: room}), 'all': (everything, {'model.full.window': room})}
    memorizing = f'memory=memorizing,layers={layers},lora=8,segment='
    size, gates = 'model.memorizing.memory_size', {'model.memorizing.gate_init': -2.0}
    far = {'memorizing': (f'{memorizing}{window}', {size: context})}
    # A window of a quarter, since keys in the window need no rows.
    narrow = gates | {size: 4 * window, 'train.segments_per_step': 8, 'train.num_steps': 160}
    narrow |= {'optimizer.learning_rate': 1e-3, 'optimizer.warmup_steps': 10}
    return {
        'blocks': Row(blocks, {held: 2 * window}, asked),
        'memorizing': Row(f'{memorizing}{quarter}', narrow, far),
    }


def run(options: Any) -> None:
    """Trains every row with every seed, and asks for keys; then reads novels, for what it costs."""
    sizes = (16, 64, '1') if options.tiny else (WINDOW, CONTEXT, '9-21')
    given = questions.texts(options, 'keys')
    for name, row in rows(*sizes).items():
        for seed in options.seeds:
            paths = {asked: _path(options, 'practice', asked, seed) for asked in row.asked}
            novels = _path(options, 'practised_novels', name, seed)
            if (options.rows and name not in options.rows) or all(
                map(provenance.saved, [*paths.values(), novels])
            ):
                continue
            params = _learned(options, row, seed)
            for asked, path in paths.items():
                found = questions.answers(options, *row.asked[asked], given, params)
                provenance.save(path, found | {'window': sizes[0]}, [seed])
                print(f'practice, {asked}, seed {seed}: finished', flush=True)
                gc.collect()
            variants, changes = row.asked[name]
            config = reading.config_of(options, variants, **changes)
            found = reading.by_segment(reading.Trainer(config), params, options.tokens)
            provenance.save(novels, found, [seed])
            gc.collect()


def _path(options: Any, part: str, name: str, seed: int) -> Path:
    return options.output / part / f'{name}, seed {seed}.json'


def _learned(options: Any, row: Row, seed: int) -> Any:
    """The parameters after the training."""
    changes = row.fields | {'data.source': 'passkey'}
    if options.tiny:
        changes |= TINY | {'train.num_steps': 2}
    config = reading.config_of(options, f'practice,{row.variants}', **changes)
    config.optimizer.groups = tuple(
        (path, GATES * rate if path.startswith('attention/gate') else rate, decay)
        for path, rate, decay in config.optimizer.groups
    )
    trainer, params = reading.begun(config)
    trained = trainer.train(seed, None, 100, begin=params)
    print([(line['step'], round(line['loss'], 3)) for line in trained.lines], flush=True)
    return trained.params
