"""Time and peak memory of loading a Llama of 1.2 billion random parameters, and the size of its file.

python -m experiments.hosts.load --folder=DIR

writes the folder (the shape of Llama 3.2 1B, bfloat16) if it is not there, and loads it in a process of
its own, whose peak memory is that of the import and of the load. `--layers=1` is for a quick look.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from experiments.options import make_parser
from longmem_jax.hosts import hosts
from longmem_jax.hosts.tensor_files import WHOLE

SHAPE = dict(
    model_type='llama', architectures=['LlamaForCausalLM'], dtype='bfloat16', vocab_size=128_256,
    hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8,
    head_dim=64, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
    hidden_act='silu', rope_parameters=dict(rope_type='default', rope_theta=500_000.0),
)  # fmt: skip


SMALL = dict(
    hidden_size=32, intermediate_size=64, head_dim=2, num_attention_heads=16, vocab_size=256
)  # for tests


def shapes(given: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a `config.json`."""
    width, hidden, rows = given['hidden_size'], given['intermediate_size'], given['vocab_size']
    keys = given['num_key_value_heads'] * given['head_dim']
    layer = {
        'input_layernorm': (width,), 'post_attention_layernorm': (width,),
        'self_attn.q_proj': (width, width), 'self_attn.k_proj': (keys, width),
        'self_attn.v_proj': (keys, width), 'self_attn.o_proj': (width, width),
        'mlp.gate_proj': (hidden, width), 'mlp.up_proj': (hidden, width),
        'mlp.down_proj': (width, hidden),
    }  # fmt: skip
    found = {'model.embed_tokens.weight': (rows, width), 'model.norm.weight': (width,)}
    for number in range(given['num_hidden_layers']):
        found |= {f'model.layers.{number}.{name}.weight': size for name, size in layer.items()}
    return found


def write(folder: Path, layers: int, small: bool = False) -> None:
    """Writes the folder; `small` is for tests."""
    given = SHAPE | (SMALL if small else {}) | dict(num_hidden_layers=layers)
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)

    def values(shape: tuple[int, ...]) -> np.ndarray:
        """Random signs and fractions, all of a size around 1/100: made faster than normal ones."""
        bits = random.integers(0, 1 << 16, shape, np.uint16) & 0x807F | 0x3C00
        return bits.view(ml_dtypes.bfloat16)

    save_file({name: values(shape) for name, shape in shapes(given).items()}, folder / WHOLE)
    (folder / 'config.json').write_text(json.dumps(given, indent=2) + '\n')


def load(folder: Path) -> dict[str, float]:
    """Loads the folder; returns seconds, by the clock and of a core, and gigabytes."""

    def peak() -> float:
        # Not `ru_maxrss`, which a process inherits from the one that started it.
        status = Path('/proc/self/status').read_text()
        return int(status.partition('VmHWM:')[2].split()[0]) * 1024 / 1e9

    jax.devices()
    before, began, worked = peak(), time.monotonic(), time.process_time()
    host = hosts.find(folder)
    params = jax.block_until_ready(
        hosts.load(host, hosts.make(host.model, 1), report=lambda _: None)
    )
    leaves = jax.tree.leaves(params)
    return {
        'parameters': sum(leaf.size for leaf in leaves),
        'seconds': round(time.monotonic() - began, 1),
        'of a core': round(time.process_time() - worked, 1),
        'file, GB': round((folder / WHOLE).stat().st_size / 1e9, 2),
        'parameters, GB': round(sum(leaf.nbytes for leaf in leaves) / 1e9, 2),
        'peak before, GB': round(before, 2),
        'peak, GB': round(peak(), 2),
    }


def main(arguments: list[str]) -> None:
    """Runs the command."""
    parser = make_parser(__doc__)
    parser.add_argument('--folder', type=Path, required=True)
    parser.add_argument('--layers', type=int, default=16)
    parser.add_argument('--only_load', action='store_true', help='in this process')
    options = parser.parse_args(arguments)
    if options.only_load:
        print(json.dumps(load(options.folder)))
        return
    if not options.folder.exists():
        write(options.folder, options.layers)
    command = [sys.executable, '-m', 'experiments.hosts.load', '--only_load']
    sys.exit(subprocess.run([*command, f'--folder={options.folder}']).returncode)


if __name__ == '__main__':
    main(sys.argv[1:])
