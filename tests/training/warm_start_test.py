"""Warm start: the parameters that are taken over, and those that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.errors import UsageError
from longmem_jax.memory.registry import ATTENTION, LAYERS
from longmem_jax.models.parameters import abstract_parameters, unbox
from longmem_jax.training.optimizer import parameter_path
from longmem_jax.training.warm_start import warm_start
from tests.toys import with_config


def test_memory_tokens_grow():
    own = {'memory_tokens': {'tokens': jnp.zeros((4, 3))}, 'other': jnp.zeros((2,))}
    other = {'memory_tokens': {'tokens': jnp.ones((2, 3))}, 'other': jnp.ones((2,))}
    said, growing = [], LAYERS['memory_tokens'].recipe.growing
    found = warm_start(own, other, 'RUN', said.append, growing)
    np.testing.assert_array_equal(
        found['memory_tokens']['tokens'], np.repeat([1.0, 0.0], 2)[:, None] * np.ones((1, 3))
    )
    assert 'rows 2 .. 3 of memory_tokens/tokens' in said[0]
    with pytest.raises(UsageError, match='only what a memory adds'):
        warm_start(other, own, 'RUN', said.append, growing)


def test_what_is_new_and_not_used_is_said_once_for_all_blocks():
    said, one = [], jnp.zeros((1,))
    blocks = {f'block_{i}': {'attention': {'gate': one, 'kernel': one}} for i in range(12)}
    old = {name: {'attention': {'kernel': one}} for name in blocks}
    old['block_2']['attention']['span'] = old['block_3']['attention']['span'] = one
    warm_start(blocks, old | {'places': one}, 'RUN', said.append)
    assert said == [
        'Began with the parameters of RUN; new: block_0..11/attention/gate; not used: '
        'block_2,3/attention/span, places.'
    ]


KERNELS = [f'projections/{name}/kernel' for name in ('query', 'key', 'value', 'out')]
# Memories that take fewer of the four from an attention layer, and why.
FEWER = {
    'memsizer': (0, 'queries score slots, and what is written is neither keys nor values of heads'),
}


def filled(name, value):
    """Parameters of the toy of a memory, all of one value; nothing is compiled."""
    model = with_config(name, layers=1)
    shapes = unbox(abstract_parameters(model))
    return jax.tree.map(lambda leaf: jnp.asarray(np.full(leaf.shape, value, leaf.dtype)), shapes)


@pytest.mark.slow
def test_every_memory_begins_with_the_attention_of_a_transformer_xl():
    """The paths of all memories must agree: a memory that differs silently loses parameters."""
    start, table, wrong = filled('transformer_xl', 1.0), [], []
    for name in sorted(ATTENTION):
        params = warm_start(filled(name, 0.0), start, 'RUN', lambda line: None)
        leaves = jax.tree_util.tree_leaves_with_path(params)
        carried = [parameter_path(path) for path, leaf in leaves if np.all(leaf == 1)]
        kernels = [kernel for kernel in KERNELS if f'block_0/attention/{kernel}' in carried]
        wanted, reason = FEWER.get(name, (len(KERNELS), ''))
        table.append(f'{name:16}{len(kernels)} of {wanted}   {reason}')
        if len(kernels) != wanted:
            wrong.append(name)
    assert not wrong, (
        f'{", ".join(wrong)}: create `self.projections = Projections(settings)` in the setup of the '
        'layer itself and pass it to its parts (or name the exception in FEWER).\n'
        + '\n'.join(table)
    )
