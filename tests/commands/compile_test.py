"""Slices of TPUs that are not there."""

import os
import subprocess
import sys
import types

import pytest

from longmem_jax.commands import compile
from longmem_jax.errors import UsageError
from tests.processes import environment


def test_another_process_may_use_the_tpu(monkeypatch):
    """libtpu has a lock, whoever holds it; it is not needed to compile."""
    seen = {}
    monkeypatch.setitem(sys.modules, 'libtpu', types.ModuleType('libtpu'))
    monkeypatch.setattr(
        compile.topologies, 'get_topology_desc', lambda name, platform: seen.update(os.environ)
    )
    for name in ('ALLOW_MULTIPLE_LIBTPU_LOAD', 'TPU_SKIP_MDS_QUERY', 'TPU_WORKER_HOSTNAMES'):
        monkeypatch.setenv(name, 'before')
        monkeypatch.delenv(name)
    compile.find_topology('v5e:2x2')
    assert seen['ALLOW_MULTIPLE_LIBTPU_LOAD'] == '1'


def test_without_libtpu_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'libtpu', None)
    with pytest.raises(UsageError, match=r"pip install 'longmem_jax\[tpu-aot\]'\.$"):
        compile.find_topology('v5e:2x2')


TWICE = """
from longmem_jax.commands import compile
topology = compile.find_topology('v5e:2x2')
print(len(topology.devices), flush=True)
input()  # libtpu is loaded until the other process has it, too
"""


def test_two_processes_have_libtpu_at_once():
    pytest.importorskip('libtpu', reason='libtpu is not here: pip install -e .[tpu-aot]')
    command = [sys.executable, '-c', TWICE]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        assert [process.stdout.readline() for process in both] == ['4\n', '4\n']
        for process in both:
            process.communicate('\n')
            assert process.returncode == 0
    finally:
        for process in both:
            process.kill()
