"""Sections that subjects bring: a config has those that it uses, and gets another where one is named."""

from collections.abc import Iterator
from typing import Any

from ml_collections import config_dict

from longmem_jax.registry import SUBJECTS, load
from longmem_jax.subject import Section

# What to do where `config.data.task` is empty.
WHOLE_TASK = (
    'take a config of the task, such as --config=recall, or give all fields at once: '
    '--config.data.task="{\'documents\': 1000, ...}"'
)


def sections() -> dict[str, Section]:
    """All sections that subjects bring, by name; of two with one name ours counts, else the first."""
    found: dict[str, Section] = {}
    for subject in SUBJECTS.values():
        found = found | dict(subject.sections) | found
    return found


def add(config: Any, name: str) -> None:
    """Adds the section `config.NAME` with neutral values, if `config` does not have it."""
    if name in config:
        return
    section = sections()[name]
    with config.unlocked():
        load(section.make)(config)
        for field, other, source in section.follows:
            config[name][field] = followed(config, other, source)


def in_use(config: Any, name: str) -> bool:
    """Whether `config` has a section that is switched on."""
    return name in config and config[name][sections()[name].switch] != 'none'


def followed(config: Any, other: str, source: str, instead: int = 0) -> config_dict.FieldReference:
    """A reference to a whole number of a section that is at least 0; to `instead` where it is 0."""
    field = config[other].get_oneway_ref(source)
    # Of references there is only arithmetic: the quotient is -1 for 0, else 0.
    return field - (field - 1) // 2**62 * instead if instead else field


def follows(config: Any) -> Iterator[tuple[str, str, str, str, int]]:
    """Lines like those of `base.FOLLOWS` of all `Section.follows` in `config`."""
    for name, section in sections().items():
        if name in config:
            yield from ((name, *line, 0) for line in section.follows)
