"""Mixtures of experts in `config.json` and in files: which layers have them, and of which sizes."""

from typing import Any

from longmem_jax.config.recipes import section
from longmem_jax.hosts.attributes import Attributes
from longmem_jax.hosts.families import Family

# Attribute to our field.
FIELDS = dict(
    num_experts='experts',
    num_experts_per_tok='top_k',
    moe_intermediate_size='width',
    norm_topk_prob='renormalized',
    shared_expert_intermediate_size='always',
)


def read(family: Family, left: Attributes, model: Any) -> None:
    """Puts experts into the layers of a `config.model` that have them."""
    if not family.experts:
        return
    defaults = dict(family.experts)
    if left.has('num_local_experts'):  # as newer files of transformers call it
        defaults['num_experts'] = left.take('num_local_experts', int)
        left.require('num_experts', defaults['num_experts'])
    fields = {name: left.take(name, type(value), value) for name, value in defaults.items()}
    every = left.number('decoder_sparse_step', int, 1)
    dense = left.take('mlp_only_layers', list, None) or []
    number, chosen = fields['num_experts'], fields['num_experts_per_tok']
    if any(type(layer) is not int for layer in dense):
        raise left.refusal('mlp_only_layers', dense, 'numbers of layers are needed')
    if not 0 <= number <= 1 << 16:
        raise left.refusal('num_experts', number, f'must be from 0 to {1 << 16}')
    layers = range(model.num_layers)
    has = [bool(number) and (i + 1) % every == 0 and i not in dense for i in layers]
    if not any(has):
        return
    if not 1 <= chosen <= number:
        raise left.refusal('num_experts_per_tok', chosen, f'must be from 1 to {number}')
    for name in ('moe_intermediate_size', 'shared_expert_intermediate_size'):
        if name in fields and not 1 <= fields[name] <= 1 << 24:
            raise left.refusal(name, fields[name], f'must be from 1 to {1 << 24}')
    given = {FIELDS[name]: value for name, value in fields.items()}
    model.experts = section('experts', activation=model.dense.activation, **given)
    model.feed_forward = tuple('experts' if mixed else 'dense' for mixed in has)


def write(family: Family, model: Any) -> dict[str, Any]:
    """The attributes of a `config.model`: the inverse of `read`."""
    if not family.experts:
        return {}
    if 'experts' not in model.feed_forward:
        return {'num_experts': 0}
    dense = [layer for layer, name in enumerate(model.feed_forward) if name == 'dense']
    given = {name: model.experts[FIELDS[name]] for name in family.experts}
    return given | dict(decoder_sparse_step=1, mlp_only_layers=dense)
