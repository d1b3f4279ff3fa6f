"""What a program does on a GPU: its kernels by name, and their time without gaps between them."""

import collections
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

SHOWN = 12  # names with the most time


def traced(call: Callable[[], Any], calls: int) -> dict[str, Any]:
    """Per call: `kernels`, `kernels_ms`, and the `top` names with number and ms; {} without a GPU.

    Numbers at the end of a name are left out, so that the same kernel of other layers is the same.
    """
    if jax.default_backend() != 'gpu':
        return {}
    jax.block_until_ready(call())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready([call() for _ in range(calls)][-1])
        (path,) = Path(folder).rglob('*.xplane.pb')
        data = jax.profiler.ProfileData.from_file(str(path))
        streams = [
            line
            for plane in data.planes
            if 'GPU' in plane.name
            for line in plane.lines
            if line.name.startswith('Stream')
        ]
        events = [(each.name, each.duration_ns / 1e6) for line in streams for each in line.events]
    return summed(events, calls)


def summed(events: list[tuple[str, float]], calls: int) -> dict[str, Any]:
    """Names and milliseconds of all kernels of some calls, per call."""
    number, time = collections.Counter[str](), collections.Counter[str]()
    for name, ms in events:
        number[name.rstrip('_0123456789')] += 1
        time[name.rstrip('_0123456789')] += ms
    top = [[name, number[name] / calls, ms / calls] for name, ms in time.most_common(SHOWN)]
    return {'kernels': len(events) / calls, 'kernels_ms': time.total() / calls, 'top': top}
