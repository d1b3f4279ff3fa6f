"""TPUs and GPUs that are not there."""

import importlib.util
import os
import subprocess
import sys
import types

import jax
import pytest

from experiments import tpu_programs
from longmem_jax.commands import compile
from longmem_jax.devices import gpus, hardware, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, lower_step
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
    with pytest.raises(
        UsageError, match=r'H100: none of the GPUs a100, h100, h200 \(such as h100:8'
    ):
        compile.find_topology('H100')


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


def test_gpus_have_names():
    assert gpus.parsed('h100') == (gpus.GPUS['h100'], 1)
    assert gpus.parsed('a100:8') == (gpus.GPUS['a100'], 8)
    assert gpus.parsed('v5e:4x4') is None and gpus.parsed('h100:') is None
    assert gpus.parsed('h100:0') is None
    assert 'memory_bandwidth: 3350000000000\n' in gpus.GPUS['h100'].target()
    device = types.SimpleNamespace(device_kind='NVIDIA H200')
    assert (hardware.peak_flops(device), hardware.memory_bytes(device)) == (989e12, 150e9)


PLUGIN = importlib.util.find_spec('jax_plugins') and importlib.util.find_spec('jax_cuda12_plugin')


@pytest.mark.skipif(bool(PLUGIN), reason='the plugin is here')
def test_without_the_plugin_it_says_what_to_install():
    with pytest.raises(UsageError, match=r"pip install 'longmem_jax\[cuda12\]'\.$"):
        compile.find_topology('h100')


@pytest.mark.slow
@pytest.mark.skipif(not PLUGIN, reason='needs the extra [cuda12]')
def test_a_step_is_compiled_for_gpus():
    command = [sys.executable, '-m', 'longmem_jax.main', '--config=configs/quickstart.py:tiny']
    command += ['--mode=compile', '--topology=h100:2']
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert '  fits: 0% of 79.2 GiB' in done.stdout, done.stderr


def plain():
    """The steps of papers without kernels of TPUs, two layers each; one of them in the fast tier."""
    names = [name for name, row in tpu_programs.ROWS.items() if not row.settings]
    assert 'pg19' in names
    return [pytest.param(n, marks=[pytest.mark.slow] if n != 'pg19' else []) for n in names]


@pytest.mark.parametrize('name', plain())
def test_steps_of_papers_are_lowered_for_gpus(name):
    """No operation is only for another device, such as a kernel for TPUs."""
    config = tpu_programs.configured(name)
    config.train.num_lanes = 1
    mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, memory=1), jax.devices()[:1])
    lowered = lower_step(Experiment(config, None, mesh), 'cuda')
    assert 'stablehlo.dot_general' in lowered.as_text()
