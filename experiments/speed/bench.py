"""Timings as JSON: `python -m experiments.speed.bench --config=configs/NAME.py[:variant]`.

Median, minimum and maximum milliseconds per step, tokens/s, compile seconds, peak memory and state
bytes of the training step, of evaluation, and of generation token by token; and the floating point
operations of a training step and of one token in evaluation, as XLA counts them. The tokens are random:
no data is needed.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import provenance
from longmem_jax.commands import entry
from longmem_jax.config import checks
from longmem_jax.data.lanes import Batch, Cursor
from longmem_jax.devices import initial, operations, sharding
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment, lower_step, to_devices
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.generation.stream import open_stream, read_token

if __name__ == '__main__':
    _REPEATS = flags.DEFINE_integer('repeats', 10, 'Timed calls.', lower_bound=1)
    _FILL = flags.DEFINE_integer(
        'fill', 2, 'Untimed calls before them, which fill the memories.', lower_bound=0
    )


def measure(call: Callable[[], Any], repeats: int, tokens: int, fill: int = 2) -> dict[str, float]:
    """Times `call`, which returns arrays to wait for, after `fill` untimed calls.

    Returns:
      `ms_median`, `ms_min`, `ms_max` per call and `tokens_per_s` at the median.
    """
    times = []
    for repeat in range(fill + repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        if repeat >= fill:
            times.append(time.perf_counter() - began)
    median = statistics.median(times)
    return {
        'ms_median': 1e3 * median,
        'ms_min': 1e3 * min(times),
        'ms_max': 1e3 * max(times),
        'tokens_per_s': tokens / median,
    }


def state_bytes(state: Any) -> int:
    """Bytes of all leaves of a state."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def draw(
    reader: Reader, number: int, vocab_size: int, *, temperature: float = 1.0, chunk: int = 0
) -> list[np.ndarray]:
    """Draws the next tokens, of all below `vocab_size`; `chunk` 0 = all of them at once."""
    how = dict(temperature=temperature, top_k=0, top_p=1.0, seed=0, chunk=chunk or number)
    return list(reader.write(number, vocab_size=vocab_size, **how))


def bytes_per_lane(model: Any, params: Any) -> int:
    """Bytes of what one lane carries from segment to segment; nothing is computed."""
    return state_bytes(jax.eval_shape(lambda params: fresh_state(model, params, 1), params))


def random_batch(config: Any, section: Any, segments: int) -> Batch:
    """A batch of random tokens, [segments, lanes, segment_length], one long document per lane.

    `section` is `config.train` or `config.evaluate`.
    """
    shape = (segments, section.num_lanes, section.segment_length)
    tokens = np.random.default_rng(0).integers(0, config.model.vocab_size, shape, dtype=np.int32)
    return Batch(
        tokens=tokens,
        targets=np.roll(tokens, -1, axis=-1),
        valid=np.ones(shape, bool),
        scored=np.ones(shape, np.uint8),
        start=np.zeros(shape[:2], bool),
        num_bytes=np.full(shape[:2], section.segment_length, np.float32),
    )


def bench_train(experiment: Experiment, repeats: int, fill: int) -> dict[str, Any]:
    """Times the whole training step, with the optimizer; adds the memories' metrics at the end."""
    began = time.perf_counter()
    lowered = lower_step(experiment)
    compiled = lowered.compile()
    seconds = time.perf_counter() - began
    state = initial.arrays(experiment.make_state, experiment.state_shardings)
    flops = operations.count(lowered, experiment.mesh.size)
    found = time_step(experiment, compiled, state, repeats, fill)
    return found | {'compile_s': seconds, 'flops_per_device': flops}


def time_step(
    experiment: Experiment,
    compiled: Any,
    state: Any,
    repeats: int,
    fill: int,
    more: Callable[[Callable[[], Any]], dict[str, Any]] = lambda call: {},
) -> dict[str, Any]:
    """Times a compiled training step; see `bench_train`. `more` measures what it likes of a step."""
    config = experiment.config
    size = state_bytes(state.memory)
    batch = random_batch(config, config.train, config.train.segments_per_step)
    zeros = np.zeros((config.train.num_lanes,), np.int32)
    inputs = to_devices(experiment, batch, Cursor(document=zeros, offset=zeros))
    holder, last = [state], {}

    def call() -> Any:
        holder[0], metrics = compiled(holder[0], *inputs)
        last.update(metrics)
        return metrics

    tokens = batch.tokens.size
    return {
        **measure(call, repeats, tokens, fill),
        **more(call),
        **{
            name: float(last[name])
            for name in last
            if name.startswith('memory/') and not last[name].ndim
        },
        'tokens_per_step': tokens,
        'state_bytes': size,
        'parameters': sum(leaf.size for leaf in jax.tree.leaves(holder[0].params)),
    }


def bench_evaluation(
    experiment: Experiment, params: Any, repeats: int, fill: int
) -> dict[str, Any]:
    """Times the scoring of one segment per lane; adds the operations of its products."""
    config = experiment.config
    evaluator = Evaluator(experiment.evaluation_model, experiment.mesh, config)
    batch = random_batch(config, config.evaluate, 1)
    batch = sharding.from_processes(experiment.mesh, batch, 1)
    initial = evaluator.initial_state(params, config.evaluate.num_lanes)
    holder = [jax.tree.map(jnp.copy, initial)]
    began = time.perf_counter()

    def call() -> Any:
        holder[0], sums = evaluator.step(params, initial, holder[0], batch)
        return sums

    jax.block_until_ready(call())
    seconds = time.perf_counter() - began
    lowered = evaluator.lower(params, initial, holder[0], batch)
    return {
        **measure(call, repeats, batch.tokens.size, fill),
        'tokens_per_step': batch.tokens.size,
        'compile_s': seconds,
        'flops_per_token': operations.count(lowered, 1) / batch.tokens.size,
        'state_bytes': state_bytes(initial),
    }


def generate_call(experiment: Experiment, params: Any) -> Callable[[], Any]:
    """A function that reads one more token in one lane per call, and returns its logits."""
    model = experiment.evaluation_model
    state = fresh_state(model, params, 1)
    stream = jax.jit(lambda params, state: open_stream(model, params, state, 1))(params, state)
    step = jax.jit(
        lambda params, token, stream: read_token(model, params, token, stream), donate_argnums=2
    )
    holder, token = [stream], jnp.zeros((1,), jnp.int32)

    def call() -> Any:
        logits, holder[0] = step(params, token, holder[0])
        return logits

    return call


def bench_generation(experiment: Experiment, params: Any, repeats: int) -> dict[str, Any]:
    """Times the generation of one token in one lane."""
    size = bytes_per_lane(experiment.evaluation_model, params)
    began = time.perf_counter()
    call = generate_call(experiment, params)
    jax.block_until_ready(call())
    seconds = time.perf_counter() - began
    return {**measure(call, 8 * repeats, 1), 'compile_s': seconds, 'state_bytes': size}


def bench(config: Any, repeats: int, fill: int = 2) -> dict[str, Any]:
    """All timings of a configuration.

    Raises:
      UsageError: problems of the configuration.
    """
    checks.require_runnable(config, jax.device_count())
    mesh = sharding.make_mesh(config.mesh.to_dict())
    experiment = Experiment(config, None, mesh)  # type: ignore[arg-type]  # no folder is used
    report = {
        'run': provenance.of_run([experiment.config.train.seed]),
        'train': bench_train(experiment, repeats, fill),
    }
    params = initial.arrays(experiment.make_state, experiment.state_shardings).params
    report['evaluation'] = bench_evaluation(experiment, params, repeats, fill)
    report['generation'] = bench_generation(experiment, params, repeats)
    report['peak_memory'] = peak_memory()
    return report


def peak_memory() -> dict[str, int]:
    """Peak bytes of this process, and of the first device where it keeps count."""
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    device = (jax.devices()[0].memory_stats() or {}).get('peak_bytes_in_use', 0)
    scale = 1 if sys.platform == 'darwin' else 1024
    return {'host_bytes': host * scale, 'device_bytes': device}


def _bench(config: Any) -> None:
    print(json.dumps(bench(config, _REPEATS.value, _FILL.value), indent=1))


if __name__ == '__main__':
    entry.command(_bench, workdir=False)
