"""What a real decoder does at a window, without any training: three ways to see 512 tokens, and all."""

import gc
from typing import Any

from experiments.smollm2 import reading
from experiments.smollm2.reading import CONTEXT, WINDOW


def rows(window: int, context: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Names to variants of `configs/host.py` and changed fields."""
    half = window // 2
    held = {'model.sinks.memory_length': half}
    return {
        'segments': (f'memory=local,segment={window}', {}),
        'sliding': (f'memory=none,segment={half},context={window}', {}),
        'sinks': (f'memory=sinks,segment={half}', held),
        'all': (f'memory=none,segment={window},context={context}', {}),
        'all, beyond': (
            f'memory=none,segment={window},context={context}',
            {'model.full.window': 2 * context},  # as transformers reads on
        ),
    }


def run(options: Any) -> None:
    """Bits per byte of every row by position, untrained."""
    window, context = (16, 64) if options.tiny else (WINDOW, CONTEXT)
    for name, (variants, changes) in rows(window, context).items():
        path = options.output / 'windows' / f'{name}.json'
        if reading.kept(path) or (options.rows and name not in options.rows):
            continue
        trainer, params = reading.begun(reading.config_of(options, variants, **changes))
        found = reading.by_segment(trainer, params, options.tokens)
        reading.keep(path, found)
        print(f'{name}: {found["seconds"]} s', flush=True)
        del trainer, params
        gc.collect()
