"""Time of local adaptation, several rows in parallel against one by one.

python -m experiments.lifelong.speed [--rows=64] [--neighbours=32] [--steps=30] [--rounds=3]

Each row of a test gets parameters of its own, adapted to its neighbours in the memory (MbPA). The
encoder is that of `configs/lifelong_classification.py:tiny`, not trained, and the texts are random:
neither changes the time. Every chunk size is timed once in every round, in turns, after one call that
is not timed; the table has medians, and ratios to one by one that are taken within rounds. Scores are
the same for all, to rounding; the largest difference is printed.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments import markdown
from experiments.options import make_parser, whole_numbers
from longmem_jax.lifelong import adaptation, encoders
from longmem_jax.lifelong.heads import Classes
from longmem_jax.lifelong.network import Network
from longmem_jax.lifelong.rows import Rows

CLASSES, VOCABULARY, LENGTH = 33, 8_000, 64


def texts(random: np.random.Generator, count: int) -> Rows:
    """Random rows without padding."""
    tokens = jnp.asarray(random.integers(10, VOCABULARY, (count, LENGTH)), jnp.int32)
    labels = jnp.asarray(random.integers(0, CLASSES, count), jnp.int32)
    return Rows(tokens, jnp.zeros(tokens.shape, jnp.uint8), labels)


def main() -> None:
    """Runs the command."""
    parser = make_parser(__doc__)
    for name, default in dict(rows=64, neighbours=32, steps=30, rounds=3).items():
        parser.add_argument(f'--{name}', type=int, default=default)
    parser.add_argument('--chunks', type=whole_numbers, default=[1, 8, 64])
    options = parser.parse_args()
    random = np.random.default_rng(0)
    stream, rows = texts(random, 1_000), texts(random, options.rows)
    model = encoders.small_model(VOCABULARY, LENGTH)
    network = Network(encoders.untrained(model, dropout=0.0), Classes(CLASSES))
    params = network.init(jax.random.key(0))
    numbers = jnp.asarray(random.integers(0, 1_000, (options.rows, options.neighbours)))
    found = jnp.ones(numbers.shape, bool)

    def program(chunk: int):
        settings = adaptation.Adaptation(options.steps, 1e-2, 0.0, 1e-3, 'all', chunk)
        return jax.jit(
            lambda: adaptation.predict_each(network, params, stream, rows, numbers, found, settings)
        )

    programs = {chunk: program(chunk) for chunk in options.chunks}
    answers = [jax.block_until_ready(each()) for each in programs.values()]
    apart = max(float(jnp.abs(answer - answers[0]).max()) for answer in answers)
    times = {chunk: [] for chunk in options.chunks}
    for _ in range(options.rounds):
        for chunk, each in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(each())
            times[chunk].append(time.perf_counter() - began)
    lines = []
    for chunk, found_times in times.items():
        ratios = [
            first / this for first, this in zip(times[options.chunks[0]], found_times, strict=True)
        ]
        lines.append(
            [f'{chunk}', f'{statistics.median(found_times):.2f}', markdown.span(ratios, 2)]
        )
    print(
        f'{jax.devices()[0].device_kind}: {options.rows} rows, {options.neighbours} neighbours, '
        f'{options.steps} steps; largest difference of a score {apart:.1e}'
    )
    print(markdown.table(['rows at once', 's', f'times as fast as {options.chunks[0]}'], lines))


if __name__ == '__main__':
    main()
