"""The fields of `config.lifelong`, with neutral values; each method adds a section with its fields."""

from typing import Any

from ml_collections import config_dict

from longmem_jax.devices.generators import prng_problems


def section(config: Any) -> None:
    """Sets `config.lifelong`."""
    config.lifelong = config_dict.create(
        method='none',  # or one of `lifelong.methods`, with a section of that name
        stream='tasks',  # one after another; 'joint': shuffled together; or the name of one task
        order='',  # name of a published order of the tasks
        epochs=1,  # passes over a stream that is not 'tasks'
        measure='ends',  # scores on all tasks after every task, or only at the 'end'
        first_rows=0,  # rows of every test set for scores after a task; 0 = all
        draws=1,  # repeated final tests, each with new draws from the memory; scores are means
    )


def check(config: Any) -> list[str]:
    """Problems of a lifelong learner's model; the rest is checked where it is built."""
    method = config.lifelong.method if 'lifelong' in config else 'none'
    if (method != 'none') == (config.model.kind == 'text_encoder'):
        return prng_problems(config, 'lifelong learners') if method != 'none' else []
    return [
        f'config.lifelong.method = {method!r}, config.model.kind = {config.model.kind!r}: a lifelong '
        "learner and 'text_encoder' belong together; begin with configs/lifelong_classification.py"
    ]
