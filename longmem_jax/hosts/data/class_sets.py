"""The data sets for classifiers, and whether a config gives them to one."""

from typing import Any

from longmem_jax.hosts.data import superglue_pairs
from longmem_jax.hosts.data.classes import ClassSet
from longmem_jax.problems import under

CLASS_SETS: dict[str, ClassSet] = {'superglue_pairs': superglue_pairs.CLASS_SET}


def check(config: Any) -> list[str]:
    """Problems of data with classes and of the classifier that reads them."""
    data, model = config.data, config.model
    if (data.source in CLASS_SETS) != (model.kind == 'classifier'):
        return [
            f'config.data.source = {data.source!r}, config.model.kind = {model.kind!r}: '
            f"{', '.join(map(repr, CLASS_SETS))} and 'classifier' belong together"
        ]
    if data.source not in CLASS_SETS:
        return []
    read = CLASS_SETS[data.source]
    problems = under('config.data.task', read.check(data.task))
    if problems or 'classifier' not in model:
        return problems
    classes, by_choice = read.classes(data.task), read.by_choice(data.task)
    for name, needed in (('classes', classes), ('by_choice', by_choice)):
        if model.classifier.get(name) != needed:
            problems.append(
                f'config.model.classifier.{name} = {model.classifier.get(name)}: '
                f'{data.task.name} needs {needed}'
            )
    length = data.task.max_length * (classes if by_choice else 1)
    for section in ('train', 'evaluate'):
        if config[section].segment_length != length:
            problems.append(
                f'config.{section}.segment_length = {config[section].segment_length}: must be {length}, '
                f'config.data.task.max_length = {data.task.max_length} for each pair of an example'
            )
    return problems
