"""How much memory every experiment of Expire-Span and its baselines need, as a Markdown table.

python -m experiments.expire_span.memory [--peak] [--lanes=8] [--output=FILE.json] [CONFIG ...]
Without configs: all of the paper's, at full size and `:tiny`. The state of all layers is exact, and
nothing is computed. `--peak` also compiles one training step on one device with `--lanes` lanes, of
one layer (`--layers=0`: all): parameters, optimizer and memories, and the temporaries, of which a
switch counts its largest branch. On CPU, temporaries are float32 whatever the dtype of the model.
"""

import argparse
import importlib
import math
import time
from pathlib import Path
from typing import Any

import jax

from experiments import provenance
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, lower_step
from longmem_jax.models.parameters import initial_parameters, unbox

PAPER = (
    'expire_span_enwik8', 'expire_span_enwik8:large', 'expire_span_enwik8:one_gpu',
    'expire_span_pg19', 'expire_span_pg19:span=16384', 'expire_span_wikitext103',
    'copy', 'copy:span=131072', 'collision', 'collision:span=65536', 'instruction',
    'expire_span_enwik8:tiny', 'expire_span_pg19:tiny', 'expire_span_wikitext103:tiny',
    'copy:tiny', 'collision:tiny', 'instruction:tiny',
)  # fmt: skip
MEMORIES = ('transformer_xl', 'adaptive_span', 'compressive', 'expire_span')


def get_config(argument: str, memory: str) -> Any:
    """The config `NAME[:VARIANTS]` of `configs/` with a memory."""
    name, _, variants = argument.partition(':')
    module = importlib.import_module(f'configs.{name}')
    return module.get_config(','.join(filter(None, (variants, f'memory={memory}'))))


def length(config: Any) -> str:
    """The longest reach of the memory and, of Expire-Span, the memories that it reserves space for."""
    model = config.model
    if 'compressive' in model:
        fields = model.compressive
        return f'{fields.memory_length:,} + {fields.compressed_length:,} x {fields.rate}'
    if 'adaptive_span' in model:
        return f'{model.adaptive_span.max_span:,}'
    fields = model.expire_span
    return f'{fields.max_span:,}, capacity {fields.capacity:,}'


def on_one_device(config: Any) -> Experiment:
    """The experiment, without a folder."""
    config.mesh = dict(data=1, fsdp=1, tensor=1, memory=1)
    return Experiment(config, None, sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1]))


def num_bytes(tree: Any) -> int:
    """Bytes of all leaves."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def keep_layers(model: Any, number: int) -> None:
    """Leaves the first `number` of equal layers."""
    model.num_layers = number
    model.attention, model.feed_forward = model.attention[:number], model.feed_forward[:number]


def state_bytes(config: Any) -> int:
    """Bytes of the memories of all layers in one lane."""
    model, layers = config.model, config.model.num_layers
    assert len(set(model.attention)) == 1
    keep_layers(model, 1)
    model = on_one_device(config).model

    def one_lane() -> Any:
        params = unbox(initial_parameters(model, jax.random.key(0)))
        return model.apply({'params': params}, 1, method='initial_state')

    return layers * num_bytes(jax.eval_shape(one_lane))


def compiled(config: Any, lanes: int, layers: int) -> tuple[int, int, float]:
    """Bytes of arguments and of temporaries of a compiled training step, and seconds to compile it."""
    config.train.num_lanes = lanes
    if layers:
        keep_layers(config.model, layers)
    experiment = on_one_device(config)
    began = time.monotonic()
    memory = lower_step(experiment).compile().memory_analysis()
    seconds = time.monotonic() - began
    return num_bytes(experiment.abstract_state), memory.temp_size_in_bytes, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('configs', nargs='*', default=PAPER, metavar='CONFIG')
    parser.add_argument('--peak', action='store_true')
    parser.add_argument('--lanes', type=int, default=8)
    parser.add_argument('--layers', type=int, default=1)
    parser.add_argument('--memories', nargs='+', default=MEMORIES, choices=MEMORIES)
    parser.add_argument(
        '--capacity', type=int, default=-1, help='of expire_span; 0 = never overflows'
    )
    parser.add_argument('--output', type=Path, help='JSON file for the states, in bytes')
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    columns = ['config', 'memory', 'length', 'lanes', 'state, GB', 'state of a lane, MB']
    if arguments.peak:
        layers = arguments.layers or 'all'
        title = f'{arguments.lanes} lanes, {layers} layer' + 's' * (layers != 1)
        columns += [f'{title}: arguments, MB', 'temporaries, MB', 'compiled in, s']
    print('|' + '|'.join(columns) + '|\n' + '|---' * len(columns) + '|')
    for name in arguments.configs:
        for memory in arguments.memories:
            try:
                config = get_config(name, memory)
            except (ImportError, UsageError) as error:
                raise SystemExit(f'{name}: {error}') from error
            if memory == 'expire_span' and arguments.capacity >= 0:
                config.model.expire_span.capacity = arguments.capacity
            again = config.copy_and_resolve_references()
            lanes, reach = config.train.num_lanes, length(config)
            state = state_bytes(config)
            found.setdefault(name, {})[memory] = {'state': state * lanes, 'of a lane': state}
            row = [name, memory, reach, str(lanes)]
            row += [f'{state * lanes / 1e9:,.2f}', f'{state / 1e6:,.1f}']
            if arguments.peak:
                held, temporaries, seconds = compiled(again, arguments.lanes, arguments.layers)
                row += [f'{held / 1e6:,.0f}', f'{temporaries / 1e6:,.0f}', f'{seconds:.0f}']
            print('|' + '|'.join(row) + '|', flush=True)
    if arguments.output:
        provenance.save(arguments.output, found, [], device='calculated')


if __name__ == '__main__':
    main()
