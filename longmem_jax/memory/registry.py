"""The layers that `config.model.attention` and `config.model.feed_forward` may name.

To add a memory, write its file and add one name here. Configs, checks, recipes and the conformance suite
take everything else from its `Entry`.
"""

from types import ModuleType

from longmem_jax.contract import Entry
from longmem_jax.layers import feed_forward
from longmem_jax.memory import (
    full,
    infini,
    local,
    memsizer,
    product_key,
    sliding,
    transformer_xl,
)
from longmem_jax.memory.adaptive_span import layer as adaptive_span
from longmem_jax.memory.compressive import layer as compressive
from longmem_jax.memory.expire_span import layer as expire_span
from longmem_jax.memory.infinity_former import layer as infinity_former
from longmem_jax.memory.linear_attention import layer as linear_attention
from longmem_jax.memory.memorizing import layer as memorizing
from longmem_jax.memory.memorizing import without_memory
from longmem_jax.memory.memory_tokens import tokens as memory_tokens
from longmem_jax.registry import Joined, Registry


def _by_name(*modules: ModuleType) -> dict[str, Entry]:
    return {module.ENTRY.name: module.ENTRY for module in modules}


_ATTENTION = _by_name(
    local,
    full,
    sliding,
    transformer_xl,
    adaptive_span,
    compressive,
    expire_span,
    infinity_former,
    infini,
    without_memory,
    memorizing,
    linear_attention,
    memsizer,
    memory_tokens,
)
ATTENTION = Registry('memory', Entry, _ATTENTION, kind='memory')

FEED_FORWARD = Registry(
    'feed-forward layer', Entry, _by_name(feed_forward, product_key), kind='feed_forward'
)

LAYERS = Joined(ATTENTION, FEED_FORWARD)
