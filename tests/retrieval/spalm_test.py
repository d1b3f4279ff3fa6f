"""The gate of SPALM: training resumes bit for bit, and only with its own model and datastore."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from longmem_jax.errors import UsageError
from longmem_jax.reporting.writers import read_metrics
from longmem_jax.retrieval import spalm
from tests.commands.train_test import texts  # noqa: F401  (a fixture)
from tests.processes import environment
from tests.retrieval.retrieval_test import opened, trained  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]
NUM_STEPS = 13  # over the end of the first part of eight segments

# Trains the gate in every folder given; in the first, a process of its own kills itself at a step.
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import jax, ml_collections
from longmem_jax.devices import sharding
from longmem_jax.experiment import Experiment
from longmem_jax.reporting.progress import Progress
from longmem_jax.retrieval import spalm

config = ml_collections.ConfigDict(json.loads(sys.argv[1]))
update = Progress.update

def update_and_die(progress, step, text):
    update(progress, step, text)
    if step == int(sys.argv[2]):
        os.kill(os.getpid(), getattr(signal, sys.argv[3]))

Progress.update = update_and_die
for folder in sys.argv[4:]:
    mesh = sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1])
    spalm.train(Experiment(config, Path(folder), mesh))
"""


def settings(config, frozen):
    config = config.copy_and_resolve_references()
    config.retrieval.spalm.update(num_steps=NUM_STEPS, frozen=frozen)
    config.checkpoint.every = 2
    return config


def run(config, step, name, *folders, cache):
    """Trains in a separate process; returns its exit code and output."""
    process = subprocess.run(
        [sys.executable, '-c', PROGRAM, config.to_json(), str(step), name, *map(str, folders)],
        cwd=ROOT, env=environment(cache=cache), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    return process.returncode, process.stdout


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp('cache')


@pytest.mark.slow
@pytest.mark.parametrize(
    'frozen, kill_at, name', [(True, 5, 'SIGKILL'), (True, 11, 'SIGTERM'), (False, 10, 'SIGKILL')]
)
def test_killed_and_started_again_ends_bit_for_bit(
    trained,  # noqa: F811
    tmp_path,
    cache,
    frozen,
    kill_at,
    name,
):
    """Killed inside a part of the data and after its end, frozen or not."""
    config, workdir = trained
    config = settings(config, frozen)
    cut, whole = tmp_path / 'cut', tmp_path / 'whole'
    for folder in (cut, whole):
        shutil.copytree(workdir, folder)
    code, out = run(config, kill_at, name, cut, cache=cache)
    assert code == (-signal.SIGKILL if name == 'SIGKILL' else 0), out
    assert ('SIGTERM: saved at step' in out) == (name == 'SIGTERM')
    assert not (cut / 'spalm' / 'parameters.safetensors').exists()
    code, out = run(config, -1, name, cut, whole, cache=cache)
    assert code == 0 and 'Resuming at step' in out, out
    assert out.count(f'Gate after {NUM_STEPS} steps') == 2
    found, wanted = (
        load_file(folder / 'spalm' / 'parameters.safetensors') for folder in (cut, whole)
    )
    assert set(found) == set(wanted) and (len(found) == 1) == frozen
    assert np.abs(wanted['gate']).max() > 0
    for path in wanted:
        np.testing.assert_array_equal(found[path], wanted[path], err_msg=path)
    losses = [
        [
            line['loss']
            for line in read_metrics(folder / 'spalm' / 'metrics.jsonl')
            if 'loss' in line
        ]
        for folder in (cut, whole)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == NUM_STEPS


def test_a_gate_goes_on_with_its_own_model_and_datastore_only(trained, tmp_path):  # noqa: F811
    config, workdir = trained
    folder = tmp_path / 'run'
    shutil.copytree(workdir, folder)
    spalm.train(opened(config, folder))
    other = opened(config, folder)
    other.config.retrieval.spalm.k = 2
    with pytest.raises(UsageError) as caught:
        spalm.train(other)
    assert 'model.k: 3 in the checkpoint, 2 given' in str(caught.value)
    assert f'Delete {folder / "spalm"} to train a gate for this one' in str(caught.value)
    store = tmp_path / 'store'
    shutil.copytree(config.retrieval.datastore, store)
    manifest = json.loads((store / 'manifest.json').read_text())
    manifest['shards'][0]['sha256']['keys'] = '0' * 64
    (store / 'manifest.json').write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match='another run:\n  datastore: '):
        spalm.train(opened(config, folder, datastore=str(store)))
