"""Times of a large model on one device: training steps, and compiling them."""

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.gpu import kernels, peers, turns
from experiments.gpu.job import Absent, Place, keep, kept, memories
from experiments.short_trainings import on_one_device
from experiments.speed import compare
from experiments.speed.bench import measure, peak_memory, time_step
from experiments.speed.cases import CASES
from longmem_jax.config import checks, recipes
from longmem_jax.config.base import base, size
from longmem_jax.devices import hardware, initial
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, lower_step
from longmem_jax.memory.registry import LAYERS, used

SEGMENTS, LAYERS_COMPILED = (512, 2048), (1, 2, 4)
MATRIX = 8192  # of the product whose rate is the measured peak
# Of a memory, a field with another value. Sizes of a buffer are branches of the program.
VARIANTS = {
    'expire_span in one size': ('expire_span', 'expire_span.num_sizes', 1),
    'delta_net in chunks of 64': ('delta_net', 'delta.chunk', 64),
}


def config_of(name: str, segment: int, layers: int, lanes: int, tiny: bool) -> Any:
    """Layers of 1,024 in bfloat16 on bytes; a memory reaches two segments, a search 16 of them.

    `name`: of a memory, or of one of `VARIANTS`.
    """
    memory, field, value = VARIANTS.get(name, (name, '', None))
    config = base()
    if tiny:
        segment, layers, lanes = 8, min(layers, 2), min(lanes, 2)
    width, heads = (16, 2) if tiny else (1024, 16)
    size(config, layers, width, heads, 4 * width)
    config.model.dtype = 'bfloat16'
    config.data.source = 'stdlib'  # not read
    config.train.segment_length = config.evaluate.segment_length = segment
    config.train.num_lanes = config.evaluate.num_lanes = lanes
    config.train.segments_per_step = 1
    recipes.use(config, memory, reach=2 * segment, memories=16 * segment)
    if field:
        config.model.update_from_flattened_dict({field: value})
    return config


def experiment_of(config: Any) -> Experiment:
    """The model on one device."""
    checks.require_runnable(config, 1)
    return on_one_device(config)


def fused(tiny: bool) -> list[str]:
    """The memories all of whose layers have a fused kernel."""
    found = []
    for memory in memories(tiny):
        model = config_of(memory, 512, 2, 1, tiny).model
        kernels = [LAYERS[name].layer.fused for name in used(model)]
        found += [memory] if any(kernels) else []
    return found


def step_cells(tiny: bool) -> list[str]:
    """The peak, then for every length of segments all memories, and those who do the same."""
    by_kind = {
        'plain': [*memories(tiny), *([] if tiny else ['delta_net in chunks of 64'])],
        'fused': [*fused(tiny), *([] if tiny else ['expire_span in one size'])],
        'torch': peers.ATTENTION,
        'fla': peers.FLA[: 1 if tiny else None],
    }
    lengths = SEGMENTS[: 1 if tiny else None]
    cells = [f'{n}/{kind}/{name}' for n in lengths for kind in by_kind for name in by_kind[kind]]
    return ['peak', *cells]


def step(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """A training step: ms, tokens/s, share of the peak, bytes of the device, seconds of compiling."""
    if cell == 'peak':
        return _peak(place, 64 if place.tiny else MATRIX)
    segment, kind, name = cell.split('/')
    if kind in ('torch', 'fla'):
        return peers.step(kind, name, int(segment), place)
    config = config_of(name, int(segment), 12, 8, place.tiny)
    config.model.kernels = kind
    experiment = experiment_of(config)
    began = time.perf_counter()
    try:
        lowered = lower_step(experiment)
    except UsageError as error:
        if kind == 'fused':
            raise Absent(f'no fused kernels for {jax.default_backend()}') from error
        raise
    clocks = [began, time.perf_counter()]
    with turns.shared(place):
        clocks.append(time.perf_counter())
        compiled = lowered.compile()
        clocks.append(time.perf_counter())
        state = initial.arrays(experiment.make_state, experiment.state_shardings)
    print(
        f'traced in {clocks[1] - began:.1f} s, compiled in {clocks[3] - clocks[2]:.1f}', flush=True
    )
    with turns.alone(place) as free:
        # Filled first, so that spans and rows are those of a long text.
        found = time_step(
            experiment, compiled, state, 2 if place.tiny else 10, 1 if place.tiny else 20, _more
        )
    found |= {'traced_s': clocks[1] - began, 'compile_s': clocks[3] - clocks[2], 'alone': free}
    flops = 6 * found['parameters'] * found['tokens_per_step']  # forwards 2, backwards 4
    found |= _share(flops, found['ms_median'] / 1e3)
    return found | {'device_bytes': peak_memory()['device_bytes']}


def _more(call: Callable[[], Any]) -> dict[str, Any]:
    """Of steps of which the last one is waited for, as in a training; and their kernels."""
    began = time.perf_counter()
    jax.block_until_ready([call() for _ in range(peers.ROW)][-1])
    row = (time.perf_counter() - began) / peers.ROW
    return {'row_ms': 1e3 * row} | kernels.traced(call, peers.TRACED)


def _share(flops: float, seconds: float) -> dict[str, float]:
    """Of the data sheet's peak; {} where it is not known."""
    peak = hardware.peak_flops(jax.devices()[0])
    return {'share': flops / seconds / peak} if peak else {}


def _peak(place: Place, length: int) -> dict[str, Any]:
    """The rate of one large product in bfloat16, which no step exceeds."""
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (length, length), jnp.bfloat16) for key in keys)
    multiply = jax.jit(jnp.matmul)
    with turns.alone(place) as free:
        times = measure(lambda: multiply(a, b), 20, length)
    seconds = times['ms_median'] / 1e3
    rate = {'flops_per_s': 2 * length**3 / seconds, 'alone': free}
    return times | rate | _share(2 * length**3, seconds)


def compile_cells(tiny: bool) -> list[str]:
    """All memories, and those with fewer branches."""
    return [*memories(tiny), *([] if tiny else ['expire_span in one size'])]


def compiling(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """Seconds of tracing and of compiling by layers; on a GPU also without XLA's autotuning."""
    jax.config.update('jax_enable_compilation_cache', False)
    found = kept(folder / 'layers.json')
    for layers in LAYERS_COMPILED:
        if str(layers) in found:
            continue
        config = config_of(cell, 512, layers, 8, place.tiny)
        clocks = [time.perf_counter()]
        lowered = lower_step(experiment_of(config))
        clocks.append(time.perf_counter())
        lowered.compile()
        clocks.append(time.perf_counter())
        seconds = {'traced': clocks[1] - clocks[0], 'compiled': clocks[2] - clocks[1]}
        if jax.default_backend() == 'gpu':
            lowered.compile(compiler_options={'xla_gpu_autotune_level': 0})
            seconds['not tuned'] = time.perf_counter() - clocks[2]
        found[str(layers)] = seconds
        keep(folder / 'layers.json', found)
        print(layers, seconds, flush=True)
        jax.clear_caches()
        gc.collect()
    return {'layers': found}


def authors_cells(tiny: bool) -> list[str]:
    """The cases of the page of speed."""
    found = [f'{peer}/{case}' for peer, cases in CASES.items() for case in cases]
    return found[: 1 if tiny else None]


def authors(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """Our step and that of the authors' code in turns, one process each."""
    peer, case = cell.split('/')
    peers.library('torch')
    given = [f'--peer={peer}', f'--case={case}', f'--checkout={place.brought(f"peers/{peer}")}']
    (found,) = compare.main([*given, *['--toy'] * place.tiny])
    return found
