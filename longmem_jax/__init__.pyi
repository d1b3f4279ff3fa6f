"""Types of the public names. Written by `python -m tests.stubs`; do not edit."""

from typing import TypedDict, Unpack

from jax.typing import DTypeLike

from longmem_jax import nnx as nnx
from longmem_jax.commands.api import evaluate as evaluate
from longmem_jax.commands.api import generate as generate
from longmem_jax.commands.api import run_mode as run_mode
from longmem_jax.commands.api import score as score
from longmem_jax.commands.api import train as train
from longmem_jax.commands.load import load as load
from longmem_jax.config.files import configure as configure
from longmem_jax.registry import register as register
from longmem_jax.reporting.trackers import Stop as Stop
from longmem_jax.standalone import Layer as Layer
from longmem_jax.standalone import make_layer as make_layer

__version__: str

class Settings(TypedDict, total=False):
    """What every layer takes; a comment has the value of a setting that is not given.

    A layer that does not read a setting refuses other values of it.
    """

    head_dim: int | None  # None
    name: str | None  # None
    dropout: float  # 0.0
    dtype: DTypeLike  # 'float32'
    d_feed_forward: int | None  # None
    num_layers: int  # 1
    attention_dropout: float  # 0.0
    init_std: float  # 0.0
    num_kv_heads: int  # 0
    attention_bias: str  # 'none'
    scale_scores: bool  # True
    norm_epsilon: float  # 1e-05
    rotary_base: float  # 10000.0
    rotary_share: float  # 1.0
    rotary_scaling: str  # 'none'
    rotary_factor: float  # 1.0
    rotary_original: int  # 0
    rotary_bands: tuple[float, float]  # (1.0, 4.0)
    rotary_factors: tuple[float, ...]  # ()
    rotary_gain: float  # 1.0
    init: str  # 'normal'
    scale_residual_init: bool  # False
    kernels: str  # 'plain'
    cache_tokens: int  # 0
    norm: str  # 'layernorm'
    pre_norm: bool  # True
    residual_dropout: float  # -1.0
    token_std: float  # 0.0

def ARMT(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    num_tokens: int = 10,
    d_mem: int = 64,
    nu: int = 3,
    correction: bool = True,
    position: str = 'rotary',
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Memory tokens whose outputs every block writes to a matrix, from which later segments read."""

def AdaptiveSpan(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    max_span: int = 8192,
    ramp: int = 32,
    per: str = 'head',
    initial_share: float = 0.0,
    start: str = 'empty',
    trim_memory: bool = False,
    num_sizes: int = 6,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Attention within learned spans."""

def AttentionSinks(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    memory_length: int = 1024,
    sinks: int = 4,
    position: str = 'rotary',
    gradients: bool = False,
    block_size: int = 0,
    overflow: str = 'none',
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Attention to the first tokens of the document, the last ones, and the segment."""

def ChannelMixing(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Two linear maps with a squared ReLU in between, of the token and the one before it."""

def ChunkRetrieval(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    memory_length: int = 8192,
    block_length: int = 512,
    top_k: int = 3,
    landmarks: bool = False,
    gate: str = 'mean',
    sinks: bool = False,
    near: int = 0,
    position: str = 'rotary',
    clamp_length: int = 0,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Attention to a token's own block of the text and the few earlier blocks that suit it best."""

def CompressiveTransformer(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    memory_length: int = 512,
    compressed_length: int = 512,
    rate: int = 2,
    compression: str = 'convolution',
    reading: str = 'segment',
    position: str = 'transformer_xl',
    reconstruction: str = 'attention',
    start: str = 'empty',
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Two memories: recent vectors, and slots of `rate` vectors each."""

def DeltaNet(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    chunk: int = 64,
    carry: bool = True,
    gradients: bool = True,
    gate: str = 'head',
    key_dim: int = 0,
    value_dim: int = 0,
    key_heads: int = 0,
    value_heads: int = 0,
    head_norm: bool = True,
    convolution: int = 4,
    negative_eigenvalues: bool = False,
    first_rates: tuple[float, float] = (1.0, 16.0),
    output_gate: str = 'silu',
    rank: int = 0,
    epsilon: float = 1e-05,
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """A matrix per head that is corrected by the delta rule; it may fade by a learned gate."""

def Dense(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    activation: str = 'relu',
    bias: bool = True,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Two linear maps with an activation in between; stateless."""

def Experts(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    activation: str = 'swiglu',
    bias: bool = False,
    experts: int = 8,
    top_k: int = 2,
    width: int = 0,
    renormalized: bool = True,
    always: int = 0,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """A mixture of gated experts without biases; stateless."""

def ExpireSpan(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    max_span: int = 16384,
    ramp: int = 128,
    capacity: int = 0,
    position_length: int = 512,
    pre_div: float = 1.0,
    initial_share: float = 0.1,
    shorten: bool = False,
    start: str = 'empty',
    num_sizes: int = 6,
    block_size: int = 1024,
    limit: int = 0,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Attention to memories that have not expired."""

def FullAttention(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    window: int = 1024,
    position: str = 'rotary',
    output_gate: bool = False,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Attention to the last `window` tokens, the query's own included."""

def GatedLinearAttention(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    chunk: int = 64,
    carry: bool = True,
    gradients: bool = True,
    gate: str = 'channel',
    gate_rank: int = 16,
    slowness: float = 16.0,
    tied: bool = False,
    least_kept: float = 0.0,
    key_dim: int = 0,
    value_dim: int = 0,
    convolution: int = 0,
    output_gate: bool = True,
    epsilon: float = 1e-05,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """A matrix per head that fades by a gate per channel or head, given by each token."""

def InfiniAttention(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    position: str = 'rotary',
    features: str = 'elu',
    rule: str = 'delta',
    normalizer: str = 'sum',
    guard: str = 'clamp',
    epsilon: float = 1e-06,
    gate_init: float = 0.0,
    gate_std: float = 0.0,
    skip_gate_when_empty: bool = False,
    rotate_memory: bool = False,
    gradients: bool = True,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Local causal attention and a compressive memory, mixed by a learned gate per head."""

def InfinityFormer(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    memory_length: int = 150,
    position: str = 'transformer_xl',
    num_basis: int = 150,
    widths: tuple[float, ...] = (0.01, 0.05),
    num_samples: int = 512,
    tau: float = 0.5,
    ridge: float = 0.5,
    sigma_sq_min: float = 0.0001,
    density: str = 'gaussian',
    padding: bool = True,
    write_length: int = 0,
    memory_threshold: int = 0,
    threshold_kind: str = 'fill',
    sticky: str = 'none',
    num_bins: int = 128,
    kl: str = 'true',
    sigma_0: float = 0.05,
    normalize_written: bool = True,
    biases: bool = False,
    first_width: float = 0.0,
    first_places: tuple[float, ...] = (),
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Short-term attention plus the expectation of the continuous memory."""

def LinearAttention(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    chunk: int = 64,
    carry: bool = True,
    gradients: bool = True,
    features: str = 'elu',
    size: int = 64,
    tau: float = 1.0,
    random: str = 'orthogonal',
    redraw: bool = False,
    seed: int = 0,
    learned_scale: bool = True,
    gate: bool = False,
    guard: str = 'add',
    epsilon: float = 1e-06,
    shift: str = 'none',
    bias: bool = True,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Causal attention by features of queries and keys, without a softmax."""

def Local(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    position: str = 'rotary',
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Attention to the segment alone."""

def Mamba2(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    chunk: int = 64,
    carry: bool = True,
    gradients: bool = True,
    state_size: int = 128,
    value_dim: int = 0,
    groups: int = 1,
    convolution: int = 4,
    convolution_bias: bool = True,
    bias: bool = False,
    shortest: float = 0.0,
    longest: float = 0.0,
    first_steps: tuple[float, float] = (0.001, 0.1),
    first_rates: tuple[float, float] = (1.0, 16.0),
    output_gate: bool = True,
    epsilon: float = 1e-05,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """A matrix per head that fades by a time step, given by each token."""

def MemSizer(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    chunk: int = 64,
    carry: bool = False,
    gradients: bool = True,
    num_slots: int = 32,
    bias: bool = True,
    query_scale: float = 32.0,
    write_scale: float = 1.0,
    shift: str = 'none',
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Causal key-value memory layer."""

def MemTransformer(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    read_cache: bool = False,
    look_ahead: str = 'nearest',
    memory_length: int = 150,
    same_length: bool = False,
    clamp_length: int = 0,
    position: str = 'transformer_xl',
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Attention of a layer through which memory tokens pass, with a Transformer-XL cache."""

def Memformer(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    encoder: str = 'slot_attention',
    num_encoder_layers: int = 4,
    num_slots: int = 1024,
    num_summaries: int = 4,
    temperature: float = 0.25,
    bias_std: float = 0.01,
    slot_heads: int = 0,
    forgets: bool = True,
    normalized: bool = False,
    positions: bool = False,
    activation: str = 'relu',
    position: str = 'rotary',
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Slots that an encoder reads and writes, and what the blocks read of the encoder."""

def Memorizing(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    position: str = 't5',
    memory_length: int = 512,
    window: int = 0,
    attend_self: bool = True,
    start: str = 'empty',
    scale_init: float = 1.0,
    normalized: bool = True,
    sinks: int = 0,
    memory_size: int = 8192,
    top_k: int = 32,
    search: str = 'exact',
    recall_target: float = 0.95,
    block_size: int = 8192,
    cache_dtype: str = 'float32',
    unwritten: str = 'masked',
    gate_init: float = 0.0,
    skip_gate_when_empty: bool = False,
    head_norm: str = 'none',
    **settings: Unpack[Settings],
) -> Layer:
    """Local attention with recent keys, plus the nearest of `memory_size` older ones."""

def MemoryTokens(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    num_tokens: int = 20,
    at_end: bool = True,
    carry: bool = True,
    gradients: bool = True,
    read_cache: bool = False,
    look_ahead: str = 'nearest',
    memory_length: int = 0,
    same_length: bool = False,
    clamp_length: int = 0,
    position: str = 'transformer_xl',
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Memory tokens around a segment."""

def NormalizedXL(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    position: str = 't5',
    memory_length: int = 512,
    window: int = 0,
    attend_self: bool = True,
    start: str = 'empty',
    scale_init: float = 1.0,
    normalized: bool = True,
    sinks: int = 0,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Local attention with recent keys and nothing more; attributes as in `Memorizing`."""

def ProductKeyMemory(
    *,
    d_model: int,
    segment_length: int,
    num_keys: int = 512,
    num_heads: int = 4,
    top_k: int = 32,
    query_dim: int = 512,
    query_hidden: tuple[int, ...] = (),
    query_norm: str = 'batch',
    normalize_query: bool = False,
    temperature: float = 1.0,
    keys: str = 'product',
    chunk: int = 0,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """A feed-forward layer with a large number of slots."""

def RWKV7(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    chunk: int = 64,
    carry: bool = True,
    gradients: bool = True,
    decay_rank: int = 64,
    erase_rank: int = 64,
    value_rank: int = 32,
    gate_rank: int = 128,
    epsilon: float = 0.00064,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """A matrix per head that fades by channel, erases one vector and writes another."""

def RetNet(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    chunk: int = 64,
    carry: bool = True,
    gradients: bool = True,
    decay: str = 'retnet',
    rotate: bool = True,
    key_dim: int = 0,
    value_dim: int = 0,
    output_gate: bool = True,
    epsilon: float = 1e-06,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """A matrix per head that fades at a fixed rate, with rotated queries and keys."""

def SlidingAttention(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    window: int = 256,
    position: str = 'rotary',
    output_gate: bool = False,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Attention to the last `window` tokens, the query's own included."""

def TTT(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    chunk: int = 16,
    carry: bool = True,
    gradients: bool = True,
    inner: str = 'linear',
    base_rate: float = 1.0,
    rope_base: float = 10000.0,
    convolution: int = 4,
    gate: bool = True,
    epsilon: float = 1e-06,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """A small model per head that is trained while it reads."""

def Titans(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    chunk: int = 16,
    carry: bool = True,
    gradients: bool = True,
    batch: int = 1,
    matrices: int = 2,
    expansion: float = 4.0,
    momentum: bool = True,
    muon: bool = False,
    largest_step: float = 0.0,
    largest_surprise: float = 0.0,
    loss: str = 'l2',
    power: float = 3.0,
    threshold: float = 1.0,
    convolution: int = 4,
    silu: bool = True,
    key_norm: str = 'l2',
    read_norm: bool = True,
    epsilon: float = 1e-06,
    inner_epsilon: float = 1e-05,
    own_norms: bool = False,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """A network per head that learns keys and values while it reads, with momentum and forgetting."""

def TransformerXL(
    *,
    d_model: int,
    num_heads: int,
    segment_length: int,
    memory_length: int = 512,
    same_length: bool = False,
    clamp_length: int = 0,
    position: str = 'transformer_xl',
    share_biases: bool = True,
    block_size: int = 0,
    head_norm: str = 'none',
    cache_dtype: DTypeLike | None = None,
    **settings: Unpack[Settings],
) -> Layer:
    """Segment-level recurrence."""
