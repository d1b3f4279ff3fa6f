"""What is compared: the sizes of both sides, and by peer the cases and what each side sets for them."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The model of both sides, float32 without dropout, and the batch of a step."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    feed_forward: int = 1024
    segment: int = 128
    lanes: int = 4
    vocab: int = 256

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads


FULL = Sizes()
TOY = Sizes(layers=3, width=16, heads=2, feed_forward=24, segment=8, lanes=2, vocab=32)
DECODER = Sizes(segment=512)  # the others are those of a folder


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
      label: what both sides hold.
      config: the argument of `configs/benchmark.py` for our side; None = one layer, `layer`.
      fill: untimed steps that fill the memories of both sides.
      changes: fields of our configuration, by their path.
      peer: what the peer's side needs to know; see its file in `peers`.
      layer: fields of our layer, where one layer is compared alone; with `memory`, a name of
        `:memory=`, what differs from its recipe, else product keys.
      adam: True = the layer's parameters are updated by Adam, too.
      sizes: those of both sides; None = `FULL`.
      prompt: tokens that a pretrained decoder reads and continues in a step; 0 = the case is no prompt.
      drawn: tokens of the continuation, each the most likely one.
      texts: prompts of a step, all of the same length.
    """

    label: str
    config: str | None = ''
    fill: int = 12
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    peer: dict[str, Any] = dataclasses.field(default_factory=dict)
    layer: dict[str, Any] = dataclasses.field(default_factory=dict)
    adam: bool = False
    sizes: Sizes | None = None
    prompt: int = 0
    drawn: int = 1
    texts: int = 1


def _prompt(tokens: int, drawn: int = 1, texts: int = 1) -> Case:
    """Prompts and their continuations, by the decoder in the folder `--checkout`."""
    label = f'{texts} prompts of {tokens:,}' if texts > 1 else f'a prompt of {tokens:,}'
    label += f', {drawn} drawn' if drawn > 1 else ''
    asked = dict(prompt=tokens, drawn=drawn, texts=texts)
    return Case(label, fill=1, peer=asked, sizes=DECODER, **asked)


def _slots(num_keys: int, sparse: bool, adam: bool = False) -> Case:
    """Product keys as one layer; `sparse` is of the peer's gradient, ours is dense."""
    layer = dict(num_keys=num_keys, num_heads=4, top_k=32, query_dim=256)
    kind = 'sparse' if sparse else 'dense'
    return Case(
        f'one layer, {num_keys} x {num_keys} slots, {kind} gradient of the peer{", Adam" * adam}',
        config=None,
        fill=2,
        layer=layer,
        peer=layer | dict(sparse=sparse, adam=adam),
        adam=adam,
    )


def _sequential(module: str, name: str, **arguments: Any) -> dict[str, Any]:
    """What the peer `transformer_sequential` needs to know."""
    return {'module': module, 'class': name, 'arguments': arguments}


def _expiring(limit: int, ramp: int, share: float) -> dict[str, Any]:
    """The same for Expire-Span, whose memories begin with a span of `share` of `limit`."""
    return _sequential(
        'expire_span',
        'ExpireSpan',
        attn_lim=limit,
        expire_span=True,
        expire_span_ramp=ramp,
        expire_span_init_percentage=share,
        expire_span_loss=1e-6,
        expire_span_pre_div=1.0,
        expire_span_noisy=False,
        expire_span_layerdrop=0.0,
    )


def _recurrent(of: str, memory: str, label: str, **fields: Any) -> Case:
    """One recurrent layer, next to that of a library `of` PyTorch."""
    layer, peer = dict(memory=memory, **fields), dict(of=of, memory=memory)
    return Case(label, config=None, fill=3, layer=layer, peer=peer)


CASES = {
    'transformer_xl': {
        '1024': Case('memory 1,024', peer=dict(memory=1024)),
    },
    'transformer_sequential': {
        'fixed': Case(
            'fixed span 1,024',
            config='fixed',
            peer=_sequential('transformer_seq', 'TransformerSeq', attn_lim=1024),
        ),
        'adaptive': Case(
            'Adaptive-Span 1,024, shares .4',
            config='memory=adaptive_span',
            peer=_sequential(
                'transformer_seq',
                'TransformerSeq',
                attn_lim=1024,
                adapt_span=True,
                adapt_span_loss=0.0,
                adapt_span_len=32,
                adapt_span_init=0.4,
                adapt_span_cache=True,
                adapt_span_trim_step=64,
                adapt_span_layer=False,
            ),
        ),
        'compressive': Case(
            'Compressive 512 + 128, rate 4',
            config='memory=compressive',
            peer=_sequential(
                'compressive',
                'CompressiveTransformer',
                attn_lim=512,
                compress_size=512,
                compress_rate=4,
            ),
        ),
        'expire': Case(
            'Expire-Span, longest 1,024, about 256 kept',
            config='memory=expire_span',
            changes={'model.expire_span.initial_share': 0.1},
            peer=_expiring(1024, 128, 0.1),
        ),
        'expire_all': Case(
            'Expire-Span, all 1,152 kept',
            config='memory=expire_span',
            changes={'model.expire_span.initial_share': 0.9999},
            peer=_expiring(1024, 128, 0.9999),
        ),
        'expire_4096': Case(
            'Expire-Span, longest 4,080, about 512 kept',
            config='alive=512',
            fill=40,
            peer=_expiring(4080, 16, 496 / 4080),
        ),
    },
    'infini': {
        'delta': Case('delta rule', config='memory=infini', peer=dict(delta=True)),
    },
    'x_transformers': {
        't5': Case(
            'memory 1,024, T5 bias (ours Transformer-XL positions)',
            peer=dict(memory=1024, positions=dict(rel_pos_bias=True)),
        ),
        'rotary': Case(
            'memory 1,024, rotary (ours Transformer-XL positions)',
            peer=dict(memory=1024, positions=dict(rotary_pos_emb=True)),
        ),
    },
    'product_keys': {
        '128': _slots(128, False),
        '256': _slots(256, False),
        '512': _slots(512, False),
        '512_sparse': _slots(512, True),
        '512_adam': _slots(512, False, adam=True),
        '512_sparse_adam': _slots(512, True, adam=True),
    },
    'transformers': {
        **{str(tokens): _prompt(tokens) for tokens in (64, 256, 512, 513)},
        'drawn': _prompt(512, 33),
        'batch': _prompt(512, 33, texts=8),
        '8192': _prompt(8192),
    },
    'memorizing': {
        '8192': Case(
            '8,192 memories in the third layer, k = 32, an XL cache of 128',
            config='memorizing=8192',
            fill=70,
            peer=dict(memories=8192, layer=3, k=32, cache=128),
        ),
    },
    'recurrent': {
        'gated_delta_net': _recurrent('transformers', 'gated_delta_net', 'Qwen3-Next'),
        'kimi_delta': _recurrent('transformers', 'kimi_delta', 'Kimi-Linear'),
        'mamba2': _recurrent('transformers', 'mamba2', 'Mamba-2'),
        'lightning': _recurrent(
            'transformers',
            'retnet',
            'MiniMax (Lightning)',
            decay='lightning',
            rotate=False,
            value_dim=64,
        ),
        'fla_delta_net': _recurrent('fla', 'delta_net', 'delta_rule_chunkwise'),
        'fla_gated_delta_net': _recurrent('fla', 'gated_delta_net', 'naive_chunk_gated_delta_rule'),
        'fla_kimi_delta': _recurrent('fla', 'kimi_delta', 'naive_chunk_kda'),
        'fla_retnet': _recurrent('fla', 'retnet', 'naive_retention', rotate=False, value_dim=64),
        'fla_gla': _recurrent('fla', 'gla', 'naive_recurrent_gla', key_dim=64),
    },
}
