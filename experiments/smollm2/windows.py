"""A real decoder at a window, without any training: ways to see 512 tokens, and grafted memories."""

import gc
from typing import Any

import jax.numpy as jnp

from experiments import provenance
from experiments.smollm2 import reading
from experiments.smollm2.inside import at_gate, gates_of, with_gates
from experiments.smollm2.reading import CONTEXT, WINDOW

RATE = 0.01  # of the gates five times that
LAYERS = '9+12+14+17+20+21'  # of 30; where `inside` has clear slopes


def rows(window: int, context: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Names to variants of `configs/host.py` and changed fields."""
    half, whole = window // 2, f'segment={window}'
    blocks, everything = f'memory=moba,{whole}', f'memory=none,{whole},context={context}'
    true = true_distances(context - window)
    means = true | {'model.chunk_retrieval.gate': 'mean'}
    first = true | {'model.chunk_retrieval.sinks': False}
    last = true | {'model.chunk_retrieval.near': 0}
    return {
        'segments': (f'memory=local,{whole}', {}),
        'sliding': (f'memory=none,segment={half},context={window}', {}),
        'sinks': (f'memory=sinks,segment={half}', {'model.sinks.memory_length': half}),
        'blocks': (blocks, {}),
        'true distances': (blocks, true),
        'blocks by means': (blocks, means),
        'last blocks': (blocks, true | {'model.chunk_retrieval.near': 6}),  # nothing is chosen
        'means alone': (blocks, means | first | last),  # MoBA as in its paper
        'first not kept': (blocks, first),
        'last not kept': (blocks, last),
        'all': (everything, {}),
        'all beyond': (everything, {'model.full.window': 2 * context}),  # as transformers reads on
    }


def true_distances(held: int) -> dict[str, Any]:
    """Fields of `memory=moba` that holds `held` tokens, all at their distances in the text."""
    return {'model.chunk_retrieval.clamp_length': 0, 'model.chunk_retrieval.memory_length': held}


def grafts(window: int, layers: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """The same for memories in some layers, and what stands in the others in all of them."""
    whole = f'segment={window}'
    memorizing, held = f'memory=memorizing,layers={layers},{whole}', 'model.memorizing.memory_size'
    sliding = {held: 8192, 'model.memorizing.sinks': 0}
    return {
        'sinks of two windows': (f'memory=sinks,{whole}', {'model.sinks.memory_length': window}),
        'memorizing': (memorizing, {held: 8192}),
        'memorizing sliding': (memorizing, sliding),
        'memorizing on segments': (memorizing, sliding | {'model.memorizing.memory_length': 0}),
        'infini': (f'memory=infini,layers={layers},{whole}', {}),
    }


def _run(options: Any, part: str, given: dict[str, tuple[str, dict[str, Any]]]) -> None:
    for name, (variants, changes) in given.items():
        path = options.output / part / f'{name}.json'
        if provenance.saved(path) or (options.rows and name not in options.rows):
            continue
        trainer, params = reading.begun(reading.config_of(options, variants, **changes))
        if gates := gates_of(params):
            shut = with_gates(params, at_gate(gates, 0.0))
            found = {
                'kept': reading.by_segment(trainer, params, options.tokens),
                'shut': reading.by_segment(trainer, shut, options.tokens),
            }
        else:
            found = reading.by_segment(trainer, params, options.tokens)
        provenance.save(path, found, [0])
        print(f'{part}, {name}: finished', flush=True)
        del trainer, params
        gc.collect()


def run(options: Any) -> None:
    """Bits per byte of the host by position, in every way to read."""
    _run(options, 'windows', rows(*((16, 64) if options.tiny else (WINDOW, CONTEXT))))


def run_far(options: Any) -> None:
    """The same, to be read further: `--tokens=65536`, and 16,384 for the row `all beyond`."""
    _run(options, 'far', rows(*((16, 64) if options.tiny else (WINDOW, CONTEXT))))


def run_grafts(options: Any) -> None:
    """The same with memories that have learned nothing, as they are put in, and with shut gates."""
    _run(options, 'grafts', grafts(*((16, '1') if options.tiny else (WINDOW, LAYERS))))


def run_learning(options: Any) -> None:
    """The gates of one graft learn on other novels, at a rate at which they can open; or are shut.

    A row that was read less far than `--tokens` is read again with the gates that it has.
    """
    variants, fields = grafts(*((16, '1') if options.tiny else (WINDOW, LAYERS)))['memorizing']
    changes = fields | {
        'optimizer.learning_rate': RATE, 'optimizer.schedule': 'constant', 'data.pieces': 16,
        'train.num_steps': 2 if options.tiny else options.steps, 'train.segments_per_step': 2,
    }  # fmt: skip
    for seed in (None, *options.seeds):
        path = options.output / 'learning' / ('shut.json' if seed is None else f'seed {seed}.json')
        found = provenance.saved(path)
        if found and len(found['nats'][0]) * found['segment'] >= options.tokens:
            continue
        config = reading.config_of(options, f'{variants},frozen', **changes)
        trainer, params = reading.begun(config)
        if seed is None:
            params = with_gates(params, at_gate(gates_of(params), 0.0))
        elif found:
            params = with_gates(
                params, {name: jnp.asarray(gate) for name, gate in found['gates'].items()}
            )
        else:
            params = trainer.train(seed, None, 100, begin=params).params
        read = reading.by_segment(trainer, params, options.tokens)
        gates = {name: gate.tolist() for name, gate in gates_of(params).items()}
        provenance.save(path, read | {'steps': config.train.num_steps, 'gates': gates}, [seed or 0])
        del trainer, params
        gc.collect()
