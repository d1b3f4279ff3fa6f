"""`python -m tests.retrieval.spalm_program CONFIG STEP FOLDER...`: trains the gate of SPALM.

In every folder given; in the first, the process kills itself at a step.
"""

import json
import os
import signal
import sys
from pathlib import Path

import jax
import ml_collections

from longmem_jax.devices import sharding
from longmem_jax.experiment import Experiment
from longmem_jax.reporting.progress import Progress
from longmem_jax.retrieval import spalm

if __name__ == '__main__':
    config = ml_collections.ConfigDict(json.loads(sys.argv[1]))
    update = Progress.update

    def update_and_die(progress, step, text):
        update(progress, step, text)
        if step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

    Progress.update = update_and_die
    for folder in sys.argv[3:]:
        mesh = sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1])
        spalm.train(Experiment(config, Path(folder), mesh))
