"""The number of parameters of a config's model, without making it."""

import operator
from collections import Counter

import jax

from longmem_jax.models.kinds import make_model
from longmem_jax.models.parameters import abstract_parameters


def num_parameters(config):
    """Builds one layer of each kind, and multiplies by their number.

    All layers where a memory stands around them, since it may have a part for each.
    """
    model, numbers = config.model, [1] * len(config.model.attention)
    if not any(model.around):
        beside = model.beside or ('',) * len(numbers)
        kinds = Counter(zip(model.attention, model.feed_forward, beside, strict=True))
        model.num_layers, numbers = len(kinds), list(kinds.values())
        model.attention, model.feed_forward, model.beside = (
            tuple(names) for names in zip(*kinds, strict=True)
        )
    model = make_model(model, config.train.segment_length)
    shapes = abstract_parameters(model)
    sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(shapes[name])) for name in shapes}
    blocks = [sizes.pop(f'block_{i}') for i in range(len(numbers))]
    return sum(sizes.values()) + sum(map(operator.mul, blocks, numbers))
