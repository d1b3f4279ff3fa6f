r"""Scores of a trained run with other settings of evaluation, as JSON.

python -m experiments.evaluation --config=configs/NAME.py[:variant] --workdir=DIR --output=FILE.json \
    --config.evaluate.FIELD=VALUE ...

`test` and `reset` are the results on the test split with the memory kept, and reset before every
segment; `memory_size` is the mean size of the memory in the first, slots of a second memory included.
"""

from pathlib import Path
from typing import Any

from absl import flags

from experiments import provenance
from experiments.analysis import memory_parts
from longmem_jax.commands import entry
from longmem_jax.experiment import Experiment

if __name__ == '__main__':
    _OUTPUT = flags.DEFINE_string('output', 'evaluation.json', 'JSON file for the results.')


def memory_size(metrics: dict[str, float]) -> float:
    """Mean size of the memories of a run, from the metrics of its layers."""
    return metrics.get('memory_size', 0.0) + metrics.get('compressed_size', 0.0)


def scores(experiment: Experiment) -> dict[str, Any]:
    """The contents of the JSON file.

    Raises:
      UsageError: there is no checkpoint.
    """
    params, step = experiment.restore_parameters()
    kept, metrics = memory_parts.score(experiment, params, 'test')
    reset, _ = memory_parts.score(experiment, params, 'test', '.')
    return {
        'step': step,
        'test': kept.as_json(),
        'reset': reset.as_json(),
        'memory_size': memory_size(metrics),
    }


def _main(experiment: Experiment) -> None:
    provenance.save(Path(_OUTPUT.value), scores(experiment), [experiment.config.train.seed])


if __name__ == '__main__':
    entry.command(_main)
