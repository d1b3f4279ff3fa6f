"""The processes of one run: joined, compared, one working while the others wait, asked for one answer.

What is said at the start goes through the store of `jax.distributed`, which needs no devices.
"""

import functools
import itertools
import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from longmem_jax.devices import lost
from longmem_jax.errors import UsageError
from longmem_jax.faults import differing

T = TypeVar('T')

TOGETHER = 600_000  # ms that processes may be apart at the start
WORK = 7 * 24 * 3_600_000  # ms that one may work while the others wait
SHOWN = 20  # differences
# All processes do the same in the same order, so these numbers agree.
_numbers = itertools.count()
_waiting: list[jax.Array] = []


def start(coordinator: str, num_processes: int, process_id: int) -> None:
    """Joins the processes of a run (`jax.distributed`); on TPU pods all arguments may be empty.

    Args:
      coordinator: 'host:port' of process 0, or '' to let JAX find the cluster.
      num_processes, process_id: -1 where JAX finds them.

    Raises:
      UsageError: no cluster could be joined, or only some of the arguments were given.
    """
    given = [bool(coordinator), num_processes > 0, process_id >= 0]
    if any(given) and not all(given):
        raise UsageError(
            '--coordinator, --num_processes and --process_id go together: '
            f'got {coordinator!r}, {num_processes}, {process_id}.'
        )
    if jax.config.jax_platforms == 'cpu':
        jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    # It would take SIGTERM away from `stopping`, and it knows steps only.
    jax.config.update('jax_enable_preemption_service', False)
    try:
        if all(given):
            jax.distributed.initialize(coordinator, num_processes, process_id)
        else:
            jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f'--distributed: no cluster could be joined ({error}). On machines that JAX does not '
            'know, set --coordinator=host:port --num_processes=N --process_id=K.'
        ) from error
    if jax.process_count() > 1:
        lost.begin(_store(), jax.process_index(), jax.process_count())


def _store() -> Any:
    """The client of the store that all processes share."""
    from jax._src import distributed  # as Orbax does; there is no public name

    return distributed.global_state.client


def require_same(facts: dict[str, Any]) -> None:
    """Compares what the processes of a run were started with.

    Args:
      facts: nested dictionary of what JSON holds.

    Raises:
      UsageError: in every process, with the fields that differ in any.
    """
    if jax.process_count() == 1:
        return
    store, key = _store(), f'longmem_jax/{next(_numbers)}'
    own = json.loads(json.dumps(facts, default=str))
    if jax.process_index() == 0:
        store.key_value_set(f'{key}/facts', json.dumps(own))
    theirs = json.loads(store.blocking_key_value_get(f'{key}/facts', TOGETHER))
    found = [
        f'process {jax.process_index()}: {field}: {first!r} in process 0, {here!r} here'
        for field, first, here in differing(theirs, own)
    ]
    if found:
        lines = json.dumps(found[:SHOWN])
        store.key_value_set(f'{key}/differences/{jax.process_index():06}', lines)
    store.wait_at_barrier(f'{key}/compared', TOGETHER)
    told = sorted(store.key_value_dir_get(f'{key}/differences'))
    if told:
        lines = [line for _, content in told for line in json.loads(content)]
        raise UsageError(
            'the processes of this run were not started with the same settings:\n  '
            + '\n  '.join(lines[:SHOWN])
            + '\nStart all of them with the same command; only --process_id differs.'
        )


def one_first(work: Callable[[], T]) -> T:
    """What `work` returns, in process 0; then in the others, which find the files that it has made.

    Raises:
      UsageError: in every process, if that of process 0 failed.
    """
    if jax.process_count() == 1:
        return work()
    store, key = _store(), f'longmem_jax/{next(_numbers)}/done'
    if jax.process_index():
        if fault := store.blocking_key_value_get(key, WORK):
            raise UsageError(f'process 0 failed: {fault}')
        return work()
    try:
        result = work()
    except BaseException as error:
        store.key_value_set(key, str(error) or type(error).__name__)
        raise
    store.key_value_set(key, '')
    return result


def from_first(value: T) -> T:
    """A value that JSON holds, as process 0 has it."""
    if jax.process_count() == 1:
        return value
    store, key = _store(), f'longmem_jax/{next(_numbers)}/value'
    if jax.process_index() == 0:
        store.key_value_set(key, json.dumps(value))
    return json.loads(store.blocking_key_value_get(key, WORK))


@functools.cache
def _largest() -> tuple[Any, NamedSharding]:
    """The program of `largest`, and where its argument is."""
    mesh = Mesh(np.asarray(jax.devices()), ('devices',))
    program = jax.jit(lambda values: values.max(), out_shardings=NamedSharding(mesh, P()))
    return program, NamedSharding(mesh, P('devices'))


def largest(value: int, *, now: bool = False) -> int:
    """The largest of all processes' values in the last call, 0 in the first; in this one with `now`.

    All processes must call it in the same order with their other programs. The answer to the last call
    is there already, so that the devices do not wait for the host.
    """
    program, placed = _largest()
    own = np.full((jax.local_device_count(),), value, np.int32)
    _waiting.append(program(jax.make_array_from_process_local_data(placed, own)))
    answers = _waiting[:] if now else _waiting[:-1]
    del _waiting[: len(answers)]
    return max((int(answer.addressable_data(0)) for answer in answers), default=0)
