"""Rates of the products of a step, each alone, in JAX and in PyTorch, as a Markdown table.

python -m experiments.speed.products [--python=PYTHON]

The shapes are those of Transformer-XL's case: projections, feed-forward, scores and weighted values.
PyTorch runs with `--python`, the interpreter of an environment that has it; the libraries take turns,
one product each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.markdown import table

PRODUCTS = {  # left and right; leading axes are of a batch
    'keys of the memory': ((4096, 256), (256, 256)),
    'feed-forward, in': ((512, 256), (256, 1024)),
    'feed-forward, out': ((512, 1024), (1024, 256)),
    'scores': ((16, 128, 64), (16, 64, 1152)),
    'weighted values': ((16, 128, 1152), (16, 1152, 64)),
}


def multiplier(library: str, left: np.ndarray, right: np.ndarray) -> Callable[[], Any]:
    """A call that multiplies and waits."""
    if library == 'torch':
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        a, b = torch.from_numpy(left), torch.from_numpy(right)
        return lambda: torch.matmul(a, b)
    import jax

    a, b, product = jax.device_put(left), jax.device_put(right), jax.jit(jax.numpy.matmul)
    return lambda: product(a, b).block_until_ready()


def serve(library: str) -> None:
    """Times a product for every name that it reads: a line with milliseconds."""
    draw, calls = np.random.default_rng(0), {}
    for name, shapes in PRODUCTS.items():
        calls[name] = multiplier(library, *(draw.normal(size=s).astype('float32') for s in shapes))
        calls[name]()
    for line in sys.stdin:
        began = time.perf_counter()
        calls[line.strip()]()
        print(json.dumps(1e3 * (time.perf_counter() - began)), flush=True)


def gigaflops(name: str) -> float:
    """Operations of a product, in 1e9."""
    left, right = PRODUCTS[name]
    return 2e-9 * float(np.prod(left)) * right[-1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--python', help='an interpreter with PyTorch; without it only JAX runs')
    parser.add_argument('--rounds', type=int, default=40)
    parser.add_argument('--serve', choices=('jax', 'torch'), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        return serve(options.serve)
    if options.rounds < 1:
        parser.error(f'--rounds={options.rounds}: give at least 1')
    from experiments.speed.compare import PAGES, ROOT

    sides = {'jax': sys.executable} | ({'torch': options.python} if options.python else {})
    processes = {
        library: subprocess.Popen(
            [python, '-m', 'experiments.speed.products', f'--serve={library}'],
            cwd=ROOT,
            env=os.environ | PAGES['kept'],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        for library, python in sides.items()
    }
    times: dict[str, dict[str, list[float]]] = {
        name: {side: [] for side in sides} for name in PRODUCTS
    }
    for _ in range(options.rounds):
        for name, by_side in times.items():
            for library, process in processes.items():
                process.stdin.write(name + '\n')
                process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f'{library} ended; its error is above.')
                by_side[library].append(json.loads(line))
    for process in processes.values():
        process.communicate()
    rows = []
    for name, by_side in times.items():
        cells = [
            f'{1e3 * gigaflops(name) / statistics.median(found):.0f}'
            f' ({1e3 * gigaflops(name) / min(found):.0f})'
            for found in by_side.values()
        ]
        rows.append([name, ' x '.join(str(list(shape)) for shape in PRODUCTS[name]), *cells])
    heads = ['product', 'shapes', *(f'{library}, GF/s' for library in sides)]
    print(table(heads, rows))


if __name__ == '__main__':
    main()
