"""Every memory of the library in the same model, for configs that compare them."""

from typing import Any

from longmem_jax.config import recipes as baselines
from longmem_jax.config.base import stack, transformer_xl
from longmem_jax.errors import UsageError, unknown
from longmem_jax.memory.registry import LAYERS

MEMORIES = (
    'local', 'transformer_xl', 'adaptive_span', 'compressive', 'expire_span', 'infinity_former',
    'infini', 'memorizing', 'linear', 'rfa', 't2r', 'memsizer', 'product_key', 'memory_tokens',
    'recurrent', 'memformer',
)  # fmt: skip
# Names that are not those of a layer, and theirs.
NAMED = {
    'product_key': 'transformer_xl',
    'recurrent': 'memory_tokens',
    'rfa': 'linear',
    't2r': 'linear',
}


def put(
    config: Any,
    name: str,
    *,
    layers: int,
    block: int,
    reach: int,
    memories: int,
    basis: int,
    samples: int,
    widths: tuple[float, ...],
    slots: int,
    tokens: int,
    keys: int,
) -> None:
    """Puts a memory into every layer, as its paper has it, with its losses and parameter groups.

    'memorizing' is in the last layer but one, 'product_key' replaces a feed-forward layer in the
    middle of a Transformer-XL, 'memformer' has half of the layers as its encoder; 'memory_tokens'
    are fresh in every segment and stand beside a cache, 'recurrent' ones are carried without one;
    'linear' has ELU features, 'rfa' random and 't2r' learned ones.

    Args:
      config: the whole configuration; changed in place.
      name: one of `MEMORIES`.
      layers: of the model, an encoder's included.
      block: tokens per segment.
      reach: how far windows of hidden vectors reach.
      memories: rows of the Memorizing Transformer.
      basis, samples, widths: of the infinity-former.
      slots: of MemSizer and Memformer.
      tokens: memory tokens.
      keys: product keys per half.

    Raises:
      UsageError: another name.
    """
    if name not in MEMORIES:
        raise UsageError(unknown('memory', name, MEMORIES))
    model, weights = config.model, config.train.loss_weights
    for other in {*LAYERS, 'memformer'} - {'dense'}:
        if other in model:
            del model[other]
    for other in list(weights):
        del weights[other]
    config.optimizer.groups = ()
    model.kind, model.position = 'language_model', 'none'
    model.num_layers = layers
    if name == 'memorizing':
        model.feed_forward = ('dense',)
        baselines.with_memory(model, max(layers - 1, 1), block, memories, scale_init=8.0)
        return
    if name == 'memformer':
        _memformer(model, layers, slots)
        return
    layer = NAMED.get(name, name)
    stack(model, layers, layer)
    model[layer] = {
        'local': lambda: dict(position='rotary'),
        'transformer_xl': lambda: transformer_xl(reach),
        'adaptive_span': lambda: baselines.adaptive_span(reach, block // 4),
        'compressive': lambda: baselines.compressive(reach // 2, reach // 2, 4),
        'expire_span': lambda: baselines.expire_span(reach, block // 4, block),
        'infinity_former': lambda: baselines.infinity_former(
            block, block, num_basis=basis, widths=widths, num_samples=samples, sticky='quantile'
        ),
        'infini': lambda: baselines.infini(),
        'linear': lambda: baselines.linear(
            {'linear': 'elu'}.get(name, name), model.head_dim, min(block, 64)
        ),
        'memsizer': lambda: dict(
            # Its sums over the square root of the tokens grow on long documents if carried on.
            num_slots=slots,
            bias=True,
            chunk=min(block, 64),
            carry=False,
            gradients=True,
        ),
        'memory_tokens': lambda: baselines.memory_tokens(tokens, reach, name == 'recurrent'),
    }[layer]()
    if name in ('adaptive_span', 'expire_span'):
        weights[name] = 1e-6
    if name == 'compressive':
        weights.compression = 1.0
    if name == 'infinity_former':
        weights.kl = 1e-6
    if name == 'infini':
        config.optimizer.groups = (('attention/gate$', 5.0, False),)
    if layer in ('linear', 'memsizer'):
        model.position = 'sinusoidal'
    if name == 'product_key':
        names = list(model.feed_forward)
        names[layers // 2] = 'product_key'
        model.feed_forward = tuple(names)
        model.product_key = baselines.product_key(keys, model.d_model)


def _memformer(model, layers, slots):
    encoder = max(layers // 2, 1)
    stack(model, max(layers - encoder, 1), 'local')
    model.kind, model.position = 'memformer', 'sinusoidal'
    model.local = dict(position='none')
    model.memformer = dict(
        encoder='slot_attention',
        num_encoder_layers=encoder,
        num_slots=slots,
        num_summaries=4,
        temperature=0.25,
        bias_std=0.01,
    )
