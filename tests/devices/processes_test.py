"""Several processes: alike or refused, and never alone.

Most are played by threads with a store of their own; the last tests start real ones.
"""

import itertools
import json
import shutil
import socket
import threading
from types import SimpleNamespace

import jax
import pytest

from longmem_jax.commands import start_from
from longmem_jax.devices import lost, processes
from longmem_jax.errors import UsageError
from longmem_jax.retrieval import spalm_keys

OWN = threading.local()


class Store:
    """The client of `jax.distributed`, as far as it is used."""

    def __init__(self, count):
        self.values, self.changed = {}, threading.Condition()
        self.barrier = threading.Barrier(count)

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.changed:
            assert allow_overwrite or key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, 60)
            return self.values[key]

    def wait_at_barrier(self, name, timeout_in_ms):
        self.barrier.wait(60)

    def key_value_dir_get(self, key):
        with self.changed:
            return [item for item in self.values.items() if item[0].startswith(key + '/')]


class Numbers:
    def __next__(self):
        return next(OWN.numbers)


@pytest.fixture
def together(monkeypatch):
    """`(function, count)`: calls `function(index)` in all processes; what they return or raise."""

    def run(function, count=2):
        store, found = Store(count), [None] * count
        monkeypatch.setattr(processes, '_store', lambda: store)
        monkeypatch.setattr(processes, '_numbers', Numbers())
        monkeypatch.setattr(
            processes,
            'jax',
            SimpleNamespace(
                process_count=lambda: count, process_index=lambda: OWN.index, errors=jax.errors
            ),
        )

        def one(index):
            OWN.index, OWN.numbers = index, itertools.count()
            try:
                found[index] = function(index)
            except UsageError as error:
                found[index] = str(error)

        threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found

    return run


def facts(**changes):
    return {'config': {'optimizer': {'rate': 0.1} | changes, 'data': {'parts': (1, 2)}}}


def test_processes_that_were_started_alike_go_on(together):
    assert together(lambda index: processes.require_same(facts()), 3) == [None] * 3


def test_every_process_says_what_differs_in_any(together):
    found = together(
        lambda index: processes.require_same(facts(rate=0.5 if index == 1 else 0.1)), 3
    )
    assert len(set(found)) == 1
    assert 'process 1: config.optimizer.rate: 0.1 in process 0, 0.5 here\n' in found[0]
    assert 'process 2' not in found[0] and 'only --process_id differs' in found[0]


def test_one_learns_while_the_others_wait(together):
    """Two that write one file destroy each other's, or read half of it."""
    files = []

    def work(index):
        if not files:
            assert index == 0, 'only process 0 may make the file'
            files.append('vocabulary')
        return len(files)

    assert together(lambda index: processes.one_first(lambda: work(index)), 4) == [1] * 4


def test_what_fails_in_the_one_fails_in_all(together):
    def work():
        raise UsageError('no text')

    found = together(lambda index: processes.one_first(work))
    assert found == ['no text', 'process 0 failed: no text']


def test_the_answer_is_that_of_process_0(together):
    assert together(lambda index: processes.from_first(index == 0), 3) == [True] * 3


def test_a_folder_that_is_not_the_same_for_all_is_refused(together, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, 'TRIES', 1)
    folders = [tmp_path / name for name in ('shared', 'shared', 'own')]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    assert together(lambda index: processes.require_shared(folders[index])) == [None] * 2
    found = together(lambda index: processes.require_shared(folders[index]), 3)
    for message in found:
        assert 'process 0 does not share this folder with\n  process 2 on ' in message
        assert f': {tmp_path / "own"}\nGive a folder' in message and 'process 1' not in message
    assert not any(list(folder.iterdir()) for folder in folders)


def test_another_datastore_is_refused(together, monkeypatch):
    """SPALM trains with what it holds; its own checksums are compared where it is opened."""
    monkeypatch.setattr(spalm_keys, 'identity', lambda *_: {})
    spalm = SimpleNamespace(keys_from='', k=1)
    experiment = SimpleNamespace(
        config=SimpleNamespace(retrieval=SimpleNamespace(spalm=spalm)),
        restore_parameters=lambda: ({}, 3),
    )
    for other in (0, 1):
        monkeypatch.setattr(
            spalm_keys,
            'open_datastore',
            lambda *_, other=other: (None, SimpleNamespace(digest=f'digest {other * OWN.index}')),
        )
        for found in together(lambda _: spalm_keys.open_keys(experiment)):
            assert ("datastore: 'digest 0' in process 0, 'digest 1' here" in str(found)) == other


def test_parameters_of_other_files_are_refused(together, tmp_path):
    for name in 'ab':
        (tmp_path / name).mkdir()
        (tmp_path / name / 'model.safetensors').write_bytes(b'x' * 99 + name.encode())
    for other in (0, 1):
        for found in together(
            lambda _, other=other: start_from.require_same_files(
                'host', tmp_path / 'ab'[OWN.index * other], '*.safetensors'
            )
        ):
            assert ('process 1: files of host: ' in str(found)) == other


def test_every_wait_has_an_end_and_a_message(together, monkeypatch):
    late = jax.errors.JaxRuntimeError('DEADLINE_EXCEEDED: GetKeyValue() timed out with key: x')

    def never(*_):
        raise late

    for wait, silent in (('blocking_key_value_get', 'process 0'), ('wait_at_barrier', 'another')):
        monkeypatch.setattr(Store, wait, never)
        for ask in (lambda _: processes.require_same(facts()), lambda _: processes.from_first(1)):
            for told in together(ask):
                assert told == 1 or told.startswith(silent) or told.startswith('process 0'), told
                assert told == 1 or ' did not answer for ' in told and ' minutes. Look at' in told
        assert silent in str(together(lambda _: processes.require_same(facts())))
        monkeypatch.undo()


def test_what_numbers_depend_on_is_compared():
    found = processes.installed()
    assert {f'version of {name}' for name in ('jax', 'flax', 'optax', 'numpy')} <= set(found)
    assert found['digest of the sources of longmem_jax'] and found['JAX_ENABLE_X64'] is False


def test_processes_that_never_come_are_not_waited_for(monkeypatch, capfd):
    ended = threading.Event()
    codes = []
    monkeypatch.setattr(processes, 'JOIN', 0)
    monkeypatch.setattr(processes.os, '_exit', lambda code: (codes.append(code), ended.set()))
    monkeypatch.setattr(jax.distributed, 'initialize', lambda *_, **__: ended.wait(60))
    processes.start('host:1', 2, 1)
    assert codes == [2]
    said = capfd.readouterr().err
    assert said.startswith('\nUsageError: the processes of this run did not come together'), said


def test_a_single_process_asks_nobody():
    processes.require_same(facts())
    assert processes.one_first(lambda: 3) == 3 and processes.from_first(4) == 4


def test_the_largest_of_the_last_question_is_known_without_waiting():
    assert [processes.largest(value) for value in (0, 15, 2, 0)] == [0, 0, 15, 2]
    assert processes.largest(7, now=True) == 7 and processes.largest(0) == 0
    assert processes.largest(0, now=True) == 0


def test_a_silent_process_ends_the_others_with_one_message():
    store = Store(3)
    signs = [lost.Signs(store, number, 3) for number in range(3)]
    for now in range(0, 200, 10):
        for each in signs[: 3 if now < 30 else 2]:
            reason = each.look(now)
            if reason:
                break
        if reason:
            break
    assert now == 70 and reason.startswith('Process 2 was lost: no sign of life for 40 s. Look at')
    assert signs[1].look(now) == reason, 'the others say the same'


def test_a_process_that_fails_tells_the_others(monkeypatch):
    store, codes = Store(2), []
    signs = [lost.Signs(store, number, 2) for number in range(2)]
    monkeypatch.setattr(lost, '_signs', signs[1:])
    monkeypatch.setattr(lost.os, '_exit', codes.append)
    lost.ended('UsageError: the disk is full', 2)
    assert codes == [2] and signs[1].look(0) == ''
    assert signs[0].look(0).startswith('Process 1 has ended: UsageError: the disk is full\n')
    assert 'start all processes again' in signs[0].look(1)


def test_a_program_that_failed_as_another_process_is_gone_is_one_message(monkeypatch):
    gone = jax.errors.JaxRuntimeError(
        'Gloo all-reduce failed: Connection closed by peer [::1]\nmore'
    )
    assert not lost.by_another(gone), 'a single process keeps its traceback'
    monkeypatch.setattr(lost, '_signs', [lost.Signs(Store(2), 1, 2)])
    text = lost.by_another(gone)
    assert text.startswith('Another process of this run was lost') and '\nmore' not in text
    assert not lost.by_another(jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: out of memory'))
    assert not lost.by_another(ValueError('connection reset'))


def test_a_process_that_is_late_is_not_called_lost(monkeypatch):
    late = 'DEADLINE_EXCEEDED: Gloo all-reduce failed: [x.cc:78] Timed out waiting 30000ms for recv'
    store, codes = Store(2), []
    signs = [lost.Signs(store, number, 2) for number in range(2)]
    monkeypatch.setattr(lost, '_signs', signs[:1])
    monkeypatch.setattr(lost.os, '_exit', codes.append)
    monkeypatch.setattr(lost.time, 'sleep', codes.append)
    text = lost.by_another(jax.errors.JaxRuntimeError(late))
    assert 'did not answer for 30 s' in text and 'was lost' not in text
    lost.ended(text, 1)
    assert signs[1].look(0).count(lost.ADVICE) == 1, 'the advice is said once'


WORDS = 'alpha beta gamma delta epsilon zeta eta theta '
RUN = (
    '--config=configs/quickstart.py:tiny', '--config.data.source=text', '--config.data.path=~/texts',
    '--config.train.log_every=1', '--config.generate.sample_length=0', '--config.checkpoint.every=2',
    '--config.train.num_steps=4', '--config.train.evaluate_every=0',
    '--config.evaluate.max_test_segments=2',
)  # fmt: skip


def texts_in(home):
    for split in ('train', 'validation', 'test'):
        folder = home / 'texts' / split
        folder.mkdir(parents=True)
        for number in range(3):
            (folder / f'{number}.txt').write_text(WORDS * (40 + number))


def run_together(start, homes, *more, devices=1):
    """Exit codes and outputs of `RUN` in a process per home, all of them one run."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    join = [f'--coordinator=127.0.0.1:{port}', f'--num_processes={len(homes)}'] * (len(homes) > 1)
    started = [
        start(
            [*RUN, *more, *join, *[f'--process_id={number}'] * (len(homes) > 1)],
            cache=home / f'cache{number}',
            devices=devices,
            variables={'HOME': str(home)},
        )
        for number, home in enumerate(homes)
    ]
    outs = [process.communicate()[0] for process in started]
    return [process.returncode for process in started], outs


@pytest.mark.slow
def test_machines_with_other_texts_or_folders_do_not_train_together(start, tmp_path):
    """A byte is changed in one file of one machine; then its folder of the run is its own."""
    homes = [tmp_path / 'a', tmp_path / 'b']
    shared = f'--workdir={tmp_path / "run"}'
    for home in homes:
        texts_in(home)
    for split in ('train', 'validation', 'test'):
        file = homes[1] / 'texts' / split / '1.txt'
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b'theta', b'thete', 1))
        codes, outs = run_together(start, homes, shared)
        file.write_bytes(whole)
        assert codes == [2, 2], '\n'.join(outs)
        for out in outs:
            assert f'process 1: split {split}.digest of files: ' in out, out
            assert 'must read the same files' in out and 'Traceback' not in out, out
    codes, outs = run_together(start, homes, '--workdir=~/run')
    assert codes == [2, 2], '\n'.join(outs)
    for out in outs:
        assert 'process 0 does not share this folder with' in out and 'Traceback' not in out, out


@pytest.mark.slow
@pytest.mark.parametrize(
    'more',
    [
        ('--config.mesh.fsdp=2', '--config.mesh.tensor=2', '--config.mesh.data=1',
         '--config.model.vocab_size=264'),
        ('--config.mesh.memory=4', '--config.mesh.data=1'),
    ],
)  # fmt: skip
def test_the_axes_of_the_mesh_lie_over_processes(start, tmp_path, more):
    """Two processes of two devices train as one of four."""
    home, losses = tmp_path / 'a', []
    texts_in(home)
    if 'memory' in more[0]:
        more = ('--config=configs/quickstart.py:tiny,memory=memorizing', *more)
    for count in (1, 2):
        workdir = tmp_path / str(count)
        codes, outs = run_together(
            start, [home] * count, f'--workdir={workdir}', *more, devices=4 // count
        )
        assert codes == [0] * count, '\n'.join(outs)
        lines = map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines())
        losses.append([line['loss'] for line in lines if line.get('group') == 'train'])
        shutil.rmtree(workdir / 'checkpoints')
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
