"""Several processes, played by threads with a store of their own: alike or refused, and never alone."""

import itertools
import threading
from types import SimpleNamespace

import jax
import pytest

from longmem_jax.devices import lost, processes
from longmem_jax.errors import UsageError

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
            SimpleNamespace(process_count=lambda: count, process_index=lambda: OWN.index),
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
