"""The tensors of every family of Hugging Face models, one row per tensor, read in both directions.

A row is `(their name, our path or paths, pattern)`; `{i}` is the number of the layer. Rotary positions
rotate pairs (i, i + width / 2) in their models and in ours, so no row permutes anything.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from longmem_jax.hosts.pieces import prefixed

BLOCK = 'block_{i}/'
ATTENTION = BLOCK + 'attention/'
PROJECTIONS = ATTENTION + 'projections/'
# Layouts that occur often: vectors, matrices, linear maps [out, in], maps to and from heads.
VECTOR, MATRIX, LINEAR = 'd -> d', 'r d -> r d', 'o i -> i o'
HEADS_IN, HEADS_OUT, HEADS_BIAS = '(h k) d -> d h k', 'd (h k) -> h k d', '(h k) -> h k'


class Row(NamedTuple):
    """One tensor.

    Attributes:
      theirs: its name, without the family's prefix; several that are one as in `pieces`.
      ours: paths of our parameters: one, or several that the first axis of the pattern counts.
      layout: see `patterns`.
      others: other names under which files have it.
    """

    theirs: str
    ours: tuple[str, ...]
    layout: str
    others: tuple[str, ...] = ()

    def of_layer(self, layer: int) -> 'Row':
        """The row with the number of a layer filled in."""

        def named(*names: str) -> tuple[str, ...]:
            return tuple(name.replace('{i}', str(layer)) for name in names)

        return Row(named(self.theirs)[0], named(*self.ours), self.layout, named(*self.others))


def _row(theirs: str, ours: str, layout: str, *others: str) -> Row:
    return Row(theirs, (ours,), layout, others)


def _norm(theirs: str, ours: str, bias: bool = True, old: bool = False) -> list[Row]:
    """A norm; `old`: files have it under TensorFlow's names too."""
    others = [(f'{theirs}.gamma',), (f'{theirs}.beta',)] if old else [(), ()]
    rows = [_row(f'{theirs}.weight', f'{ours}/scale', VECTOR, *others[0])]
    return [*rows, _row(f'{theirs}.bias', f'{ours}/bias', VECTOR, *others[1])][: 1 + bias]


def _linear(theirs: str, ours: str, layout: str = LINEAR, bias: str = VECTOR) -> list[Row]:
    """A linear map; its bias is a row too, which counts where the model has the parameter."""
    return [
        _row(f'{theirs}.weight', f'{ours}/kernel', layout),
        _row(f'{theirs}.bias', f'{ours}/bias', bias),
    ]


def _heads(theirs: tuple[str, str, str], out: str) -> list[Row]:
    """Queries, keys, values and output of attention as four linear maps."""
    rows = []
    for name, ours in zip(theirs, ('query', 'key', 'value'), strict=True):
        rows += _linear(name, PROJECTIONS + ours, HEADS_IN, HEADS_BIAS)
    return rows + _linear(out, PROJECTIONS + 'out', HEADS_OUT)


def _joint(theirs: str, kernel: str, bias: str) -> list[Row]:
    """Queries, keys and values as one linear map."""
    return [
        Row(f'{theirs}.{field}', tuple(f'{PROJECTIONS}{name}/{ours}' for name in
            ('query', 'key', 'value')), layout)
        for field, ours, layout in (('weight', 'kernel', kernel), ('bias', 'bias', bias))
    ]  # fmt: skip


TABLE, _PLACES, _OUT = 'embedding/table_0', 'embedding/places', 'embedding/out_table_0'
_FEED_FORWARD = BLOCK + 'feed_forward/'

_H = 'h.{i}.'
_GPT_ENDS = [
    _row('wte.weight', TABLE, MATRIX),
    _row('wpe.weight', _PLACES, MATRIX),
    *_norm(_H + 'ln_1', BLOCK + 'attention_norm'),
    *_norm(_H + 'ln_2', BLOCK + 'feed_forward_norm'),
    *_norm('ln_f', 'final_norm'),
]
GPT2 = [
    *_GPT_ENDS,
    *_joint(_H + 'attn.c_attn', 'd (three h k) -> three d h k', '(three h k) -> three h k'),
    *_linear(_H + 'attn.c_proj', PROJECTIONS + 'out', '(h k) d -> h k d'),
    *_linear(_H + 'mlp.c_fc', _FEED_FORWARD + 'up', 'i o -> i o'),
    *_linear(_H + 'mlp.c_proj', _FEED_FORWARD + 'down', 'i o -> i o'),
]
_NEO = _H + 'attn.attention.'
GPT_NEO = [
    *_GPT_ENDS,
    *_heads((_NEO + 'q_proj', _NEO + 'k_proj', _NEO + 'v_proj'), _NEO + 'out_proj'),
    *_linear(_H + 'mlp.c_fc', _FEED_FORWARD + 'up'),
    *_linear(_H + 'mlp.c_proj', _FEED_FORWARD + 'down'),
]
_N = 'layers.{i}.'
GPT_NEOX = [
    _row('embed_in.weight', TABLE, MATRIX),
    *_norm(_N + 'input_layernorm', BLOCK + 'attention_norm'),
    *_norm(_N + 'post_attention_layernorm', BLOCK + 'feed_forward_norm'),
    *_norm('final_layer_norm', 'final_norm'),
    *_joint(
        _N + 'attention.query_key_value', '(h three k) d -> three d h k', '(h three k) -> three h k'
    ),
    *_linear(_N + 'attention.dense', PROJECTIONS + 'out', HEADS_OUT),
    *_linear(_N + 'mlp.dense_h_to_4h', _FEED_FORWARD + 'up'),
    *_linear(_N + 'mlp.dense_4h_to_h', _FEED_FORWARD + 'down'),
]
_ATTENTION = _N + 'self_attn.'
LLAMA = [
    _row('embed_tokens.weight', TABLE, MATRIX),
    *_heads(
        (_ATTENTION + 'q_proj', _ATTENTION + 'k_proj', _ATTENTION + 'v_proj'),
        _ATTENTION + 'o_proj',
    ),
    _row(_ATTENTION + 'q_norm.weight', PROJECTIONS + 'query/norm/scale', VECTOR),
    _row(_ATTENTION + 'k_norm.weight', PROJECTIONS + 'key/norm/scale', VECTOR),
    *_norm(_N + 'input_layernorm', BLOCK + 'attention_norm', bias=False),
    *_norm(_N + 'post_attention_layernorm', BLOCK + 'feed_forward_norm', bias=False),
    *_norm('norm', 'final_norm', bias=False),
    *_linear(_N + 'mlp.gate_proj', _FEED_FORWARD + 'gate'),
    *_linear(_N + 'mlp.up_proj', _FEED_FORWARD + 'up'),
    *_linear(_N + 'mlp.down_proj', _FEED_FORWARD + 'down'),
]
_FIRST = _N + 'mlp.experts.{e}.'
EXPERTS = [
    _row(_N + 'mlp.gate.weight', _FEED_FORWARD + 'router', LINEAR),
    *(
        _row(f'{_FIRST}{name}_proj.weight', f'{_FEED_FORWARD}expert_{name}', 'e o i -> e i o')
        for name in ('gate', 'up', 'down')
    ),
    *(
        _row(
            f'{_N}mlp.shared_expert.{name}_proj.weight',
            f'{_FEED_FORWARD}every/{name}/kernel',
            LINEAR,
        )
        for name in ('gate', 'up', 'down')
    ),
    _row(_N + 'mlp.shared_expert_gate.weight', _FEED_FORWARD + 'every_gate', LINEAR),
]
# Queries, and for each the numbers that a gate of what it has read is made of.
QWEN3_NEXT = [
    *(row for row in LLAMA if row.theirs != _ATTENTION + 'q_proj.weight'),
    *EXPERTS,
    Row(
        _ATTENTION + 'q_proj.weight',
        (PROJECTIONS + 'query/kernel', ATTENTION + 'gate/kernel'),
        '(h two k) d -> two d h k',
    ),
]
_LLAMA_WITHOUT_NORMS = [row for row in LLAMA if 'layernorm' not in row.theirs]
OLMO_HYBRID = [
    *_LLAMA_WITHOUT_NORMS,
    _row(
        _N + 'post_attention_layernorm.weight',
        BLOCK + 'attention_norm/scale',
        VECTOR,
        _N + 'feedforward_layer_norm.weight',  # as transformers 5.18 writes it
    ),
    *_norm(_N + 'post_feedforward_layernorm', BLOCK + 'feed_forward_norm', bias=False),
]
OLMO = [
    *_LLAMA_WITHOUT_NORMS,
    *_norm(_N + 'post_attention_layernorm', BLOCK + 'attention_norm', bias=False),
    *_norm(_N + 'post_feedforward_layernorm', BLOCK + 'feed_forward_norm', bias=False),
]
GEMMA3 = [
    *_LLAMA_WITHOUT_NORMS,
    *_norm(_N + 'input_layernorm', BLOCK + 'attention_norm', bias=False),
    *_norm(_N + 'post_attention_layernorm', BLOCK + 'attention_output_norm', bias=False),
    *_norm(_N + 'pre_feedforward_layernorm', BLOCK + 'feed_forward_norm', bias=False),
    *_norm(_N + 'post_feedforward_layernorm', BLOCK + 'feed_forward_output_norm', bias=False),
]
PHI3 = [
    *(row for row in LLAMA if not re.search('[qkv]_proj|(gate|up)_proj', row.theirs)),
    Row(
        _ATTENTION + 'qkv_proj.weight',
        tuple(f'{PROJECTIONS}{name}/kernel' for name in ('query', 'key', 'value')),
        ' + '.join((HEADS_IN, HEADS_IN, HEADS_IN)),
    ),
    Row(
        _N + 'mlp.gate_up_proj.weight',
        (_FEED_FORWARD + 'gate/kernel', _FEED_FORWARD + 'up/kernel'),
        '(two o) i -> two i o',
    ),
]
_E = 'encoder.layer.{i}.'
_SELF = _E + 'attention.self.'
BERT = [
    _row('embeddings.word_embeddings.weight', TABLE, MATRIX),
    _row('embeddings.position_embeddings.weight', _PLACES, MATRIX),
    _row('embeddings.token_type_embeddings.weight', 'types', MATRIX),
    *_norm('embeddings.LayerNorm', 'embedding_norm', old=True),
    *_heads((_SELF + 'query', _SELF + 'key', _SELF + 'value'), _E + 'attention.output.dense'),
    *_norm(_E + 'attention.output.LayerNorm', BLOCK + 'attention_norm', old=True),
    *_linear(_E + 'intermediate.dense', _FEED_FORWARD + 'up'),
    *_linear(_E + 'output.dense', _FEED_FORWARD + 'down'),
    *_norm(_E + 'output.LayerNorm', BLOCK + 'feed_forward_norm', old=True),
    *_linear('pooler.dense', 'pooler'),
]


def of_layers(rows: Iterable[tuple[Any, ...]]) -> list[Row]:
    """The rows of `host_layer.HostLayer.rows`, by names and paths of the whole model."""
    return [
        Row(
            prefixed(_N, theirs),
            tuple(BLOCK + path for path in ([ours] if isinstance(ours, str) else ours)),
            layout,
            tuple(prefixed(_N, name) for name in others),
        )
        for theirs, ours, layout, *others in rows
    ]


def head(*names: str) -> Row:
    """The output's own vectors, where they are not those of the input; it never has the prefix."""
    return Row(names[0], (_OUT,), MATRIX, names[1:])
