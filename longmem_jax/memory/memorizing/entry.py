"""The entry of the Memorizing Transformer: rules of its settings, and how they follow from sizes."""

from typing import Any

from longmem_jax.contract import (
    Entry,
    Fields,
    Graft,
    LayerType,
    Recipe,
    Recipes,
    Scale,
)
from longmem_jax.kernels.tpu.fused_search import MOST
from longmem_jax.layers.nearest import SEARCHES
from longmem_jax.layers.ring import DTYPES
from longmem_jax.memory.in_hosts import FIRST_GATE_IN_HOST
from longmem_jax.memory.memorizing import normalized_attention
from longmem_jax.memory.memorizing.layer import Memorizing
from longmem_jax.memory.memorizing.view import held, read
from longmem_jax.problems import at_least, between, one_of
from longmem_jax.views import View

UNWRITTEN = ('masked', 'zeros')


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that `top_k` and `block_size` suit the memory and the search."""
    problems = normalized_attention.check(fields, model, segment_length)
    size, k = fields['memory_size'], fields['top_k']
    problems += one_of(fields, search=SEARCHES, cache_dtype=DTYPES, unwritten=UNWRITTEN)
    problems += at_least(fields, 1, 'memory_size', 'top_k', 'block_size')
    if k > size:
        problems.append(
            f'top_k = {k}: more than memory_size = {size} entries; lower top_k or raise memory_size'
        )
    if fields['search'] == 'bucketed' and not problems and size % k:
        problems.append(f"memory_size = {size}: search='bucketed' needs a multiple of top_k = {k}")
    if size > fields['block_size'] > 0 and size % fields['block_size']:
        problems.append(
            f'memory_size = {size}: must be a multiple of block_size = {fields["block_size"]}, the '
            'entries searched at once'
        )
    return problems + between(fields, 0, 1, 'recall_target', ends='(]')


def fused(fields: Fields) -> str:
    """What keeps a layer from fused kernels, see `contract.LayerType.fused`."""
    if fields['search'] == 'exact' and fields['top_k'] > MOST:
        return f'top_k = {fields["top_k"]} is more than {MOST}, the largest of its exact search'
    return normalized_attention.fused(fields)


def recipe(scale: Scale) -> Recipe:
    """A memory in the last layer but one, as in the paper; an XL cache of a segment in all layers.

    Scales of unit keys begin at 8, not 1: an optimizer with absolute steps, such as Adam, would need
    thousands of steps to tell keys apart. Gates get a higher learning rate; otherwise they hardly move.
    They are shut while nothing is stored, which is not the paper's: there local attention counts
    (1 - gate) in the first segment too, which so teaches gates to shut before the memory is found.
    """
    local = dict(memory_length=scale.segment, scale_init=8.0)
    block_size = min(scale.memories, 8192)
    memory_size = -(-scale.memories // block_size) * block_size
    notes: tuple[str, ...] = ()
    if memory_size != scale.memories:
        notes = (f'memory_size = {memory_size}: {scale.memories} in whole blocks of {block_size}',)
    names = ['normalized_xl'] * scale.layers
    names[max(scale.layers - 2, 0)] = 'memorizing'
    memory = dict(memory_size=memory_size, block_size=block_size, top_k=min(32, memory_size))
    sections = {'memorizing': local | memory | dict(skip_gate_when_empty=True)}
    if scale.layers > 1:
        sections['normalized_xl'] = local
    groups = (('attention/gate$', 5.0, False),)
    return Recipe(sections, attention=tuple(names), groups=groups, notes=notes)


ENTRY = Entry(
    name='memorizing',
    layer=LayerType(
        Memorizing,
        check=check,
        reach=lambda fields, segment: max(fields['memory_size'], fields['memory_length']),
        nearest='memory_size',
        fused=fused,
    ),
    recipe=Recipes({'memorizing': recipe}),
    graft=Graft(
        lambda scale, position: dict(
            **normalized_attention.of_host(scale, position),
            skip_gate_when_empty=True,
            gate_init=FIRST_GATE_IN_HOST,
        ),
        exact=True,
        how="gates per head, which are closed while nothing is stored; the host's scores, "
        'and a window that keeps the first tokens',
        positions='none in the memory, as in the paper',
    ),
    view=View(held, read, lengths={'memory_length': '', 'memory_size': '+ entries '}),
    toy=dict(memory_length=4, memory_size=12, top_k=3, block_size=4),
    variants=dict(
        released=dict(
            search='bucketed', unwritten='zeros', start='zeros', attend_self=False, window=5
        ),
        of_a_host=dict(normalized=False, position='rotary', skip_gate_when_empty=True, sinks=2),
        int8=dict(cache_dtype='int8', memory_length=0, position='none', block_size=12),
    ),
)
