"""A host learns to tell keys in short texts, and is asked for keys in long ones, by the same memory.

The keys of training are given in other novels, with other numbers, and all of a text is within some
1,000 tokens. Low-rank parts of queries and values learn, or a memory with them; the host does not.
"""

import gc
from typing import Any

from experiments import provenance
from experiments.smollm2 import questions, reading
from experiments.smollm2.reading import CONTEXT, WINDOW

STEPS = 64  # of 1,024 tokens
# Characters before every key, and from the last one to the first question.
TEXTS = {'data.task.keys': 4, 'data.task.before': 300, 'data.task.distances': (100, 1000)}
TINY = {'data.task.keys': 2, 'data.task.before': 9, 'data.task.distances': (2, 20)}


def rows(window: int, context: int) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Names to variants of `configs/host.py`, fields of training, and rows that are asked.

    These are variants and fields again, with the parameters that have learned.
    """
    held, room = 'model.chunk_retrieval.memory_length', context + window
    blocks, everything = (
        f'memory=moba,segment={window},lora=8',
        f'memory=none,segment={window},lora=8',
    )
    asked = {
        'blocks': (blocks, {held: room}),
        'all': (f'{everything},context={context}', {'model.full.window': room}),
    }
    return {'blocks': (blocks, {held: 2 * window}, asked)}


def run(options: Any) -> None:
    """Trains every row with every seed, and asks for keys; then reads novels, for what it costs."""
    window, context = (16, 64) if options.tiny else (WINDOW, CONTEXT)
    given = questions.texts(options, 'keys')
    for name, (variants, fields, asked) in rows(window, context).items():
        for seed in options.seeds:
            paths = {row: _path(options, f'{row}, seed {seed}') for row in asked}
            novels = _path(options, f'{name}, seed {seed}', 'practised_novels')
            if (options.rows and name not in options.rows) or all(
                map(provenance.saved, [*paths.values(), novels])
            ):
                continue
            params = _learned(options, variants, fields, seed)
            for row, path in paths.items():
                found = questions.answers(options, *asked[row], given, params)
                provenance.save(path, found | {'window': window}, [seed])
                print(f'practice, {row}, seed {seed}: finished', flush=True)
                gc.collect()
            config = reading.config_of(options, asked[name][0], **asked[name][1])
            found = reading.by_segment(reading.Trainer(config), params, options.tokens)
            provenance.save(novels, found, [seed])
            gc.collect()


def _path(options: Any, name: str, part: str = 'practice') -> Any:
    return options.output / part / f'{name}.json'


def _learned(options: Any, variants: str, fields: dict[str, Any], seed: int) -> Any:
    """The parameters after the training."""
    steps = 2 if options.tiny else STEPS
    changes = fields | (TINY if options.tiny else TEXTS) | {
        'data.source': 'passkey', 'optimizer.learning_rate': 1e-3, 'optimizer.schedule': 'cosine',
        'optimizer.warmup_steps': max(steps // 16, 1), 'train.num_steps': steps,
        'train.segments_per_step': 2,
    }  # fmt: skip
    config = reading.config_of(options, f'passkey,{variants},frozen', **changes)
    trainer, params = reading.begun(config)
    trained = trainer.train(seed, None, 100, begin=params)
    print([(line['step'], round(line['loss'], 3)) for line in trained.lines], flush=True)
    return trained.params
