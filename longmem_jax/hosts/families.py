"""Families of Hugging Face models: what differs between their `config.json` files and tensors.

A family is a table, read by `model_fields` and `hosts`: none has code for its layers. The same
`LanguageModel` runs all decoders, and `TextEncoder` runs BERT.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from longmem_jax.hosts import layer_rotations, layer_windows, tables
from longmem_jax.hosts.attributes import Attributes
from longmem_jax.hosts.pieces import prefixed


@dataclasses.dataclass(frozen=True)
class Family:
    """One `model_type`.

    Attributes:
      architecture: class of the model in transformers.
      copied: attribute to (field of `config.model`, type, default); no default = required.
      context: attribute with the longest text.
      activation: attribute of the activation, and its default.
      fixed: fields of `config.model` that are the same in all models of the family.
      rows: see `tables`; names without `prefix`.
      prefix: of the names of all tensors but the head, where files of whole models have one.
      heads: names of the output's own vectors, the first one is written; () = the family has none.
      gated: whether the feed-forward layer is.
      dense_bias: attribute of its biases, or whether it has any.
      attention_bias: attribute of the biases of attention and its default, or which there are.
      rotary: arguments of `attributes.rotary`; None = positions are learned.
      kv_heads: default of `num_key_value_heads`, 0 = num_heads; None = there is no such attribute.
      head_dim: default of the attribute `head_dim`, 0 = width / heads.
      windows: `(attributes, layers) -> (window per layer)`, see `layer_windows`.
      write_windows: `(windows) -> attributes`, the inverse.
      rotations: how layers rotate otherwise than the model, see `layer_rotations`.
      experts: default of every attribute of `expert_layers`; {} = all layers are dense.
      own: name under which a layer of the registry is this family's own, see `Entry.hosts`, in layers
        whose window is None; '' = there is none.
      attention_norms_outputs: whether the norms of layers with attention are those of outputs.
      output_gate: whether attention has one.
      score_width: attribute that must be the width of a head, and its default; None = there is none.
      required: attribute to the values that are supported.
      harmless: attributes that change nothing in this family.
      ignored: patterns of tensors that files may have besides: buffers, and heads for other tasks.
    """

    architecture: str
    copied: dict[str, tuple[Any, ...]]
    context: str
    activation: tuple[str, str]
    fixed: dict[str, Any]
    rows: list[tables.Row]
    prefix: str
    heads: tuple[str, ...] = ()
    gated: bool = False
    dense_bias: str | bool = True
    attention_bias: tuple[str, bool] | str = 'none'
    rotary: dict[str, Any] | None = None
    kv_heads: int | None = None
    head_dim: int = 0
    windows: Callable[[Attributes, int], layer_windows.Windows] = lambda given, layers: (
        (0,) * layers
    )
    write_windows: Callable[[layer_windows.Windows], dict[str, Any]] = lambda windows: {}
    rotations: layer_rotations.Rotations | None = None
    experts: dict[str, Any] = dataclasses.field(default_factory=dict)
    own: str = ''
    attention_norms_outputs: bool = False
    output_gate: bool = False
    score_width: tuple[str, int] | None = None
    required: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def prefixed(self, name: str) -> str:
        """The whole name of a row's tensor in files that we write."""
        return name if name in self.heads else prefixed(self.prefix, name)

    def names(self, row: tables.Row) -> Iterator[str]:
        """The names under which files may have a row's tensor."""
        prefixes = ('',) if row.theirs in self.heads else (self.prefix, '')
        for name in (row.theirs, *row.others):
            yield from (prefixed(prefix, name) for prefix in prefixes)


_GPT2 = dict(
    vocab_size=('vocab_size', int),
    n_layer=('num_layers', int),
    n_embd=('d_model', int),
    n_head=('num_heads', int),
    n_inner=('d_feed_forward', int, None),
    layer_norm_epsilon=('norm_epsilon', float, 1e-5),
    scale_attn_weights=('scale_scores', bool, True),
    tie_word_embeddings=('tie_weights', bool, True),
)
_NEO = dict(
    vocab_size=('vocab_size', int),
    num_layers=('num_layers', int),
    hidden_size=('d_model', int),
    num_heads=('num_heads', int),
    intermediate_size=('d_feed_forward', int, None),
    layer_norm_epsilon=('norm_epsilon', float, 1e-5),
    tie_word_embeddings=('tie_weights', bool, True),
)
_SIZES = dict(
    vocab_size=('vocab_size', int),
    num_hidden_layers=('num_layers', int),
    hidden_size=('d_model', int),
    num_attention_heads=('num_heads', int),
    intermediate_size=('d_feed_forward', int),
)
_LEARNED = dict(norm='layernorm', position='learned')
_INV_FREQ = (
    r'(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq',
    r'(model\.)?rotary_emb\.inv_freq',
)
_llama = functools.partial(
    Family,
    architecture='LlamaForCausalLM',
    copied=_SIZES
    | dict(
        rms_norm_eps=('norm_epsilon', float, 1e-6),
        tie_word_embeddings=('tie_weights', bool, False),
    ),
    context='max_position_embeddings',
    activation=('hidden_act', 'silu'),
    fixed=dict(norm='rmsnorm'),
    rows=tables.LLAMA,
    prefix='model.',
    heads=('lm_head.weight',),
    gated=True,
    dense_bias=False,
    rotary={},
    kv_heads=0,
    ignored=_INV_FREQ,
)
_qwen = functools.partial(
    _llama,
    windows=layer_windows.upper_sliding,
    write_windows=layer_windows.write_upper_sliding,
)
_qwen3 = functools.partial(
    _qwen,
    fixed=dict(norm='rmsnorm', head_norm='rmsnorm'),
    attention_bias=('attention_bias', False),
)
# Norms of outputs; norms of queries and of keys are of all heads as one.
_olmo = functools.partial(
    _llama,
    copied=_llama.keywords['copied'] | dict(rms_norm_eps=('norm_epsilon', float, 1e-5)),
    fixed=dict(norm='rmsnorm', head_norm='joint_rmsnorm'),
    rows=tables.OLMO,
    attention_bias=('attention_bias', False),
    attention_norms_outputs=True,
)
# Layers with the family's own recurrence, and some with attention.
_hybrid = functools.partial(
    _llama,
    windows=layer_windows.hybrid,
    write_windows=layer_windows.write_hybrid,
    required=dict(attention_bias=(False,), hidden_act=('silu', 'swish')),
)
FAMILIES: dict[str, Family] = {
    'gpt2': Family(
        architecture='GPT2LMHeadModel',
        copied=_GPT2,
        context='n_positions',
        activation=('activation_function', 'gelu_new'),
        fixed=_LEARNED,
        rows=tables.GPT2,
        prefix='transformer.',
        heads=('lm_head.weight',),
        attention_bias='all',
        ignored=(r'(transformer\.)?h\.\d+\.attn\.(masked_)?bias',),
    ),
    'gpt_neo': Family(
        architecture='GPTNeoForCausalLM',
        copied=_NEO,
        context='max_position_embeddings',
        activation=('activation_function', 'gelu_new'),
        fixed=_LEARNED | dict(scale_scores=False),
        rows=tables.GPT_NEO,
        prefix='transformer.',
        heads=('lm_head.weight',),
        attention_bias='out',
        windows=layer_windows.alternating,
        write_windows=layer_windows.write_alternating,
        ignored=(r'(transformer\.)?h\.\d+\.attn\.attention\.(masked_)?bias',),
    ),
    'gpt_neox': Family(
        architecture='GPTNeoXForCausalLM',
        copied=_SIZES
        | dict(
            layer_norm_eps=('norm_epsilon', float, 1e-5),
            use_parallel_residual=('parallel_residual', bool, True),
            tie_word_embeddings=('tie_weights', bool, False),
        ),
        context='max_position_embeddings',
        activation=('hidden_act', 'gelu'),
        fixed=dict(norm='layernorm'),
        rows=tables.GPT_NEOX,
        prefix='gpt_neox.',
        heads=('embed_out.weight', 'lm_head.weight'),
        attention_bias=('attention_bias', True),
        rotary=dict(share=0.25),
        ignored=(
            r'(gpt_neox\.)?layers\.\d+\.attention\.(masked_)?bias',
            r'(gpt_neox\.)?layers\.\d+\.attention\.rotary_emb\.inv_freq',
        ),
    ),
    'llama': _llama(
        dense_bias='mlp_bias',
        attention_bias=('attention_bias', False),
        windows=layer_windows.no_windows,
    ),
    'mistral': _llama(
        architecture='MistralForCausalLM',
        kv_heads=8,
        windows=layer_windows.all_sliding,
        write_windows=layer_windows.write_all_sliding,
    ),
    'qwen2': _qwen(architecture='Qwen2ForCausalLM', attention_bias='qkv', kv_heads=32),
    'qwen3': _qwen3(architecture='Qwen3ForCausalLM', kv_heads=32, head_dim=128),
    'qwen3_moe': _qwen3(
        architecture='Qwen3MoeForCausalLM',
        rows=[*tables.LLAMA, *tables.EXPERTS],
        kv_heads=4,
        required=dict(use_sliding_window=(False,)),
        experts=dict(num_experts=128, num_experts_per_tok=8, norm_topk_prob=False)
        | dict(moe_intermediate_size=768),
    ),
    'smollm3': _llama(
        architecture='SmolLM3ForCausalLM',
        copied=_llama.keywords['copied'] | dict(tie_word_embeddings=('tie_weights', bool, True)),
        dense_bias='mlp_bias',
        attention_bias=('attention_bias', False),
        rotary=dict(base=2e6),
        rotations=layer_rotations.UNROTATED,
        kv_heads=4,
        windows=layer_windows.no_windows,
        harmless=('pretraining_tp', 'max_window_layers'),
    ),
    'phi3': _llama(
        architecture='Phi3ForCausalLM',
        copied=_llama.keywords['copied'] | dict(rms_norm_eps=('norm_epsilon', float, 1e-5)),
        rows=tables.PHI3,
        rotary=dict(share=1.0),
        windows=layer_windows.maybe_sliding,
        write_windows=layer_windows.write_all_sliding,
        required=dict(attention_bias=(False,), mlp_bias=(False,), lm_head_bias=(False,))
        | dict(full_attn_mod=(1,), interpolate_factor=(1,)),
        harmless=('auto_map',),  # code beside the weights, from before transformers had this family
    ),
    'gemma3_text': _llama(
        architecture='Gemma3ForCausalLM',
        copied=_llama.keywords['copied'] | dict(tie_word_embeddings=('tie_weights', bool, True)),
        activation=('hidden_activation', 'gelu_pytorch_tanh'),
        fixed=dict(norm='centred_rmsnorm', head_norm='centred_rmsnorm', scale_embedding=True)
        | dict(both_norms=True),
        rows=tables.GEMMA3,
        attention_bias=('attention_bias', False),
        rotary=dict(base=1e6),
        rotations=layer_rotations.of_windows(1e4),
        kv_heads=4,
        head_dim=256,
        score_width=('query_pre_attn_scalar', 256),
        windows=layer_windows.sliding_but_every(6),
        write_windows=layer_windows.write_sliding_but,
        required=dict(attn_logit_softcapping=(None,), final_logit_softcapping=(None,))
        | dict(use_bidirectional_attention=(False, None)),
        harmless=('cache_implementation',),
    ),
    'olmo2': _olmo(architecture='Olmo2ForCausalLM', windows=layer_windows.no_windows),
    'olmo3': _olmo(
        architecture='Olmo3ForCausalLM',
        rotary=dict(base=5e5),
        rotations=layer_rotations.of_windows(None),
        windows=layer_windows.sliding_but_every(4),
        write_windows=layer_windows.write_sliding_but,
    ),
    'qwen3_next': _hybrid(
        architecture='Qwen3NextForCausalLM',
        fixed=dict(norm='centred_rmsnorm', head_norm='centred_rmsnorm'),
        rows=tables.QWEN3_NEXT,
        rotary=dict(share=0.25),
        kv_heads=2,
        head_dim=256,
        experts=dict(num_experts=512, num_experts_per_tok=10, norm_topk_prob=True)
        | dict(moe_intermediate_size=512, shared_expert_intermediate_size=512),
        own='qwen3_next',
        output_gate=True,
        ignored=(*_INV_FREQ, r'mtp\..*'),
    ),
    'olmo_hybrid': _hybrid(
        architecture='OlmoHybridForCausalLM',
        fixed=dict(norm='rmsnorm', head_norm='joint_rmsnorm'),
        rows=tables.OLMO_HYBRID,
        rotary=dict(optional=True),
        own='olmo_hybrid',
        attention_norms_outputs=True,
    ),
    'bert': Family(
        architecture='BertModel',
        copied=_SIZES | dict(layer_norm_eps=('norm_epsilon', float, 1e-12)),
        context='max_position_embeddings',
        activation=('hidden_act', 'gelu'),
        fixed=dict(
            norm='layernorm',
            position='learned',
            kind='text_encoder',
            pre_norm=False,
            final_norm=False,
        ),
        rows=tables.BERT,
        prefix='bert.',
        attention_bias='all',
        ignored=(
            r'(bert\.)?embeddings\.position_ids',
            r'cls\..*',
            r'qa_outputs\..*',
            r'classifier\..*',
        ),
    ),
}
