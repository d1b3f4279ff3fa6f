"""Slices of TPUs that are not there."""

import os
import sys
import types

import pytest

from longmem_jax.commands import compile
from longmem_jax.errors import UsageError


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
    with pytest.raises(UsageError, match=r"pip install -e '\.\[tpu-aot\]'\.$"):
        compile.find_topology('v5e:2x2')
