"""The layers that `config.model.attention`, `feed_forward`, `beside` and `around` may name.

To add a memory, write its file and add one name here. Configs, checks, recipes and the conformance suite
take everything else from its `Entry`.
"""

from types import ModuleType
from typing import Any

from longmem_jax.contract import PLACES, Entry
from longmem_jax.layers import experts, feed_forward
from longmem_jax.memory import (
    associative_tokens,
    delta,
    full,
    infini,
    local,
    memsizer,
    product_key,
    rwkv7,
    rwkv_channel,
    sinks,
    sliding,
    test_time,
    transformer_xl,
)
from longmem_jax.memory.adaptive_span import entry as adaptive_span
from longmem_jax.memory.chunk_retrieval import layer as chunk_retrieval
from longmem_jax.memory.compressive import layer as compressive
from longmem_jax.memory.decayed import gla, mamba2, retnet
from longmem_jax.memory.expire_span import entry as expire_span
from longmem_jax.memory.infinity_former import entry as infinity_former
from longmem_jax.memory.linear_attention import layer as linear_attention
from longmem_jax.memory.memformer import layer as memformer
from longmem_jax.memory.memorizing import entry as memorizing
from longmem_jax.memory.memorizing import without_memory
from longmem_jax.memory.memory_tokens import layer as mem_transformer
from longmem_jax.memory.memory_tokens import tokens as memory_tokens
from longmem_jax.memory.sound import problem_of
from longmem_jax.memory.titans import layer as titans
from longmem_jax.registry import Part, Registry


def _by_name(*modules: ModuleType) -> dict[str, Entry]:
    return {module.ENTRY.name: module.ENTRY for module in modules}


def _recipe_of_ours(entry: Entry) -> str:
    """What is wrong with the names of an entry's recipes: what `:memory=NAME` means stays ours."""
    for owner, own in LAYERS.own.items():
        names = (
            {owner, *own.recipe.by_name} if isinstance(own, Entry) and owner != entry.name else ()
        )
        if taken := [name for name in entry.recipe.by_name if name in names]:
            return f'recipe {taken[0]!r}: there is a memory={taken[0]} of ours; choose another name'
    return ''


LAYERS = Registry(
    'memory',
    Entry,
    _by_name(
        local,
        full,
        sliding,
        transformer_xl,
        sinks,
        adaptive_span,
        compressive,
        expire_span,
        infinity_former,
        infini,
        without_memory,
        memorizing,
        chunk_retrieval,
        linear_attention,
        delta,
        memsizer,
        retnet,
        gla,
        mamba2,
        rwkv7,
        test_time,
        titans,
        mem_transformer,
        feed_forward,
        experts,
        product_key,
        rwkv_channel,
        memory_tokens,
        associative_tokens,
        memformer,
    ),
    kind='memory',
    problem=lambda entry: problem_of(entry) or _recipe_of_ours(entry),
)

ATTENTION, FEED_FORWARD, AROUND = (Part(LAYERS, place) for place in PLACES)


def used(model: Any) -> tuple[str, ...]:
    """The names of all layers of a `config.model`, each once."""
    stacks = (model.around, model.attention, model.feed_forward, model.beside)
    return tuple(dict.fromkeys(name for stack in stacks for name in stack if name))


def warnings(model: Any) -> dict[str, str]:
    """`Plan.warnings` of the layers of `config.model`."""
    return {
        f'memory/{metric}': f'config.model.{name}: {text}'
        for name in sorted(used(model))
        for metric, text in LAYERS[name].recipe.warnings.items()
    }
