"""The rows of the leaderboard: every memory, with equal parameters and, if it can, equal positions."""

import functools
from typing import Any, NamedTuple

import jax

from configs import leaderboard
from longmem_jax.config import checks
from longmem_jax.config.reach import carries_vectors
from longmem_jax.config.recipes import recipes
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import make_model
from longmem_jax.models.parameters import abstract_parameters

BASELINE = 'local'  # no memory; the other rows get its number of parameters
POSITION = 'rotary'
CARRIED_RATE = 1e-3  # of models that carry vectors; they learn later, or not, at the others' rate


class Row(NamedTuple):
    """A memory in the backbone of the leaderboard.

    Attributes:
      name: of `:memory=NAME`.
      flags: of the command line, that make parameters and positions equal, and its learning rate where
        that of the others does not teach it.
      parameters: number of parameters with these flags.
      positions: the position scheme; other than `POSITION` where the memory has its own.
    """

    name: str
    flags: list[str]
    parameters: int
    positions: str


def names() -> list[str]:
    """Every memory, in the order of the registry."""
    return list(recipes())


def config_of(name: str, size: str, task: str) -> Any:
    """The unchanged configuration of a row; `size` is 'tiny' or ''."""
    return leaderboard.get_config(variants(name, size, task))


def variants(name: str, size: str, task: str) -> str:
    """What follows `configs/leaderboard.py:` on the command line."""
    return ','.join(filter(None, (size, f'task={task}', f'memory={name}')))


def num_parameters(config: Any) -> int:
    """Parameters of a configuration's model, which is not made."""
    model = make_model(config.model, config.train.segment_length)
    shapes = abstract_parameters(model)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@functools.cache
def baseline_parameters(size: str, task: str) -> int:
    """Parameters of the baseline, which the other rows are to have too."""
    return num_parameters(config_of(BASELINE, size, task))


def row(name: str, size: str, task: str) -> Row:
    """The row of a memory.

    Its positions become `POSITION` where its fields allow that and the model adds none to the input.
    Then its feed-forward layers get the width with which it has as many parameters as the baseline, or
    the least, 1, if it has more without them.
    """
    config = config_of(name, size, task)
    flags, positions = _equal_positions(config)
    flags += one_shift(config)
    width = equal_width(config, baseline_parameters(size, task))
    config.model.d_feed_forward = width
    flags.append(f'--config.model.d_feed_forward={width}')
    if carries_vectors(config.model):
        flags.append(f'--config.optimizer.learning_rate={CARRIED_RATE}')
    return Row(name, flags, num_parameters(config), positions)


def _equal_positions(config: Any) -> tuple[list[str], str]:
    """Sets positions; returns the flags for that, and the scheme in words."""
    model = config.model
    if model.position != 'none':
        return [], f'{model.position}, added to the input'
    flags, used = [], []
    for layer in dict.fromkeys((*model.attention, *model.feed_forward)):
        fields = model.get(layer, {})
        if layer in model.feed_forward:
            continue
        if 'position' not in fields:
            used.append("the memory's own")
            continue
        own, problems = fields.position, checks.find_problems(config, 1)
        fields.position = POSITION
        if checks.find_problems(config, 1) != problems:
            fields.position = own
        elif own != POSITION:
            flags.append(f'--config.model.{layer}.position={POSITION}')
        used.append(fields.position)
    return flags, ', '.join(dict.fromkeys(used))


def one_shift(config: Any) -> list[str]:
    """Turns off a layer's own view of the tokens before, since the model has one; returns the flags."""
    flags = []
    for layer in dict.fromkeys(config.model.attention):
        for field, value in LAYERS[layer].recipe.unshifted.items():
            if config.model[layer][field] != value:
                config.model[layer][field] = value
                flags.append(f'--config.model.{layer}.{field}={value}')
    return flags


def equal_width(config: Any, target: int) -> int:
    """The width of dense feed-forward layers nearest to `target` parameters, at least 1.

    Parameters are a linear function of the width, so two widths determine it.
    """
    counts = {}
    given = config.model.d_feed_forward
    for width in (1, 2):
        config.model.d_feed_forward = width
        counts[width] = num_parameters(config)
    config.model.d_feed_forward = given
    return max(1, 1 + round((target - counts[1]) / (counts[2] - counts[1])))
