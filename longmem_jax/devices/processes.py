"""The processes of one run: joined, compared, one working while the others wait, asked for one answer.

What is said at the start goes through the store of `jax.distributed`, which needs no devices.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from longmem_jax.devices import lost
from longmem_jax.errors import UsageError
from longmem_jax.files import temporary
from longmem_jax.problems import differing

T = TypeVar('T')

JOIN = 300  # seconds until all processes have begun
TOGETHER = 600_000  # ms that processes may be apart at the start
WORK = 7 * 24 * 3_600_000  # ms that one may work while the others wait
SHOWN = 20  # differences
TRIES = 20  # looks for a file that another machine has just made, a quarter of a second apart
# What gives a step its numbers: another version may draw or add in another order.
PACKAGES = ('longmem_jax', 'jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')
SETTINGS = 'Start all of them with the same command; only --process_id differs.'
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
    if jax.config.values['jax_platforms'] == 'cpu':
        jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    # It would take SIGTERM away from `stopping`, and it knows steps only.
    jax.config.update('jax_enable_preemption_service', False)
    # JAX would end the process with a trace of its own.
    late = threading.Timer(JOIN, _not_joined)
    late.daemon = True
    late.start()
    try:
        if all(given):
            jax.distributed.initialize(
                coordinator, num_processes, process_id, initialization_timeout=2 * JOIN
            )
        else:
            jax.distributed.initialize(initialization_timeout=2 * JOIN)
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f'--distributed: no cluster could be joined ({error}). On machines that JAX does not '
            'know, set --coordinator=host:port --num_processes=N --process_id=K.'
        ) from error
    finally:
        late.cancel()
    if jax.process_count() > 1:
        lost.begin(_store(), jax.process_index(), jax.process_count())


def _not_joined() -> None:
    """Ends the process where the others have not come."""
    message = (
        f'\nUsageError: the processes of this run did not come together within {JOIN / 60:g} minutes. '
        'Start all --num_processes of them, each with its own --process_id from 0; every machine must '
        'reach --coordinator, the machine of process 0.\n'
    )
    os.write(2, message.encode())
    os._exit(2)


def _store() -> Any:
    """The client of the store that all processes share."""
    from jax._src import distributed  # as Orbax does; there is no public name

    return distributed.global_state.client


def _told(key: str, milliseconds: int) -> str:
    """What process 0 sets `key` to; `UsageError` where it has not done so in that time."""
    with _in_time('process 0', milliseconds):
        return _store().blocking_key_value_get(key, milliseconds)


@contextlib.contextmanager
def _in_time(who: str, milliseconds: int) -> Iterator[None]:
    """Says who did not answer where a wait has come to its end."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if 'DEADLINE_EXCEEDED' not in str(error):
            raise
        raise UsageError(
            f'{who} did not answer for {milliseconds / 60_000:g} minutes. {lost.ADVICE}'
        ) from error


def installed() -> dict[str, Any]:
    """What this process computes with, to be compared: versions, our sources, 64-bit numbers."""
    found = {f'version of {name}': importlib.metadata.version(name) for name in PACKAGES}
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(package.rglob('*.py')):
        inside = path.relative_to(package)
        if inside.parts[0] != 'configs':  # what a config holds is compared by itself
            digest.update(f'{inside} '.encode() + path.read_bytes())
    found['digest of the sources of longmem_jax'] = digest.hexdigest()[:16]
    return found | {'JAX_ENABLE_X64': jax.config.values['jax_enable_x64']}


def alone() -> bool:
    """Whether there is one process only, and nothing to be compared."""
    return jax.process_count() == 1


def require_same(facts: dict[str, Any], what: str = 'settings', remedy: str = SETTINGS) -> None:
    """Compares what the processes of a run were started with, values of JSON.

    `what` is the name of it all, and `remedy` what to do where it differs.

    Raises:
      UsageError: in every process, with the fields that differ in any; or one did not answer.
    """
    if jax.process_count() == 1:
        return
    store, key = _store(), f'longmem_jax/{next(_numbers)}'
    own = json.loads(json.dumps(facts, default=str))
    if jax.process_index() == 0:
        store.key_value_set(f'{key}/facts', json.dumps(own))
    theirs = json.loads(_told(f'{key}/facts', TOGETHER))
    found = [
        f'process {jax.process_index()}: {field}: {first!r} in process 0, {here!r} here'
        for field, first, here in differing(theirs, own)
    ]
    if found:
        store.key_value_set(_own(key), json.dumps(found[:SHOWN]))
    if lines := _problems(key):
        raise UsageError(
            f'the processes of this run were not started with the same {what}:\n  '
            + '\n  '.join(lines[:SHOWN])
            + f'\n{remedy}'
        )


def _own(key: str) -> str:
    """Where this process tells its problems."""
    return f'{key}/problems/{jax.process_index():06}'


def _problems(key: str) -> list[str]:
    """The problems that any process has told, when all of them have come here."""
    with _in_time('another process of this run', TOGETHER):
        _store().wait_at_barrier(f'{key}/compared', TOGETHER)
    told = sorted(_store().key_value_dir_get(f'{key}/problems'))
    return [line for _, content in told for line in json.loads(content)]


def require_shared(folder: Path) -> None:
    """Makes sure that a folder is the same one for all processes: the others see a file of process 0.

    Raises:
      UsageError: in every process, if it is not; saving a checkpoint would wait for ever.
    """
    if jax.process_count() == 1:
        return
    key = f'longmem_jax/{next(_numbers)}'
    with contextlib.ExitStack() as made:
        if jax.process_index() == 0:
            name = ''  # of a folder that is only read: nothing waits there
            with contextlib.suppress(OSError):
                name = made.enter_context(temporary(folder, '.shared-')).name
            _store().key_value_set(f'{key}/name', name)
        elif (name := _told(f'{key}/name', TOGETHER)) and not _appears(folder / name):
            where = f'process {jax.process_index()} on {socket.gethostname()}: {folder.absolute()}'
            _store().key_value_set(_own(key), json.dumps([where]))
        lines = _problems(key)
    if lines:
        raise UsageError(
            f'--workdir={folder}: process 0 does not share this folder with\n  '
            + '\n  '.join(lines[:SHOWN])
            + '\nGive a folder on a disk that all machines share, by its whole path.'
        )


def _appears(path: Path) -> bool:
    """Whether a file is there, or comes: a network's disk may show it a little later."""
    for _ in range(TRIES):
        if path.exists():
            return True
        time.sleep(0.25)
    return False


def one_first(work: Callable[[], T]) -> T:
    """What `work` returns, in process 0; then in the others, which find the files that it has made.

    Raises:
      UsageError: in every process, if that of process 0 failed.
    """
    if jax.process_count() == 1:
        return work()
    store, key = _store(), f'longmem_jax/{next(_numbers)}/done'
    if jax.process_index():
        if problem := _told(key, WORK):
            raise UsageError(f'process 0 failed: {problem}')
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
    return json.loads(_told(key, WORK))


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
