"""Recurrent memories at 340M parameters on SlimPajama (Yang et al., 2024: DeltaNet, Gated DeltaNet).

python -m longmem_jax.main --config=configs/slimpajama_340m.py --config.data.path=TEXTS --workdir=DIR
24 layers of 1,024, 8 heads of 128, segments of 2,048 tokens, 2^19 tokens per update, 15 billion in all.
TEXTS has train.jsonl, validation.jsonl and test.jsonl with a document as `text` per line. The memory is
`gated_delta_net`; `:memory=` is any other, such as `delta_net`, `gla`, `mamba2`, `retnet`, `rwkv7`, or a
pattern of layers, such as `:memory=3*gated_delta_net+full`. `:tiny` reads bytes, minutes on two cores.

`:hybrid=` has the layers of a released model, in the sizes of this config; `full` is attention to the
last 2,048 tokens, the segment's length, where the models see a whole context:
- `qwen3_next`: `3*gated_delta_net+full`; attention turns a quarter of each head, norms its queries and
  keys, and has an output gate. Qwen3-Next has experts, not dense layers, a key head for two heads of
  values in its delta layers, and for eight heads of queries in attention.
- `kimi_linear`: `3*kimi_delta+full`, attention without positions. Kimi-Linear has experts and, in the
  full layers, keys and values of low rank (MLA), which are not here; its 27th and last layer is full.
- `falcon_h1`: attention and `mamba2` side by side in every layer; both read the same norm. Here what
  Mamba-2 gives passes a gate per channel that begins at 0 (`config.model.beside`); Falcon-H1 adds the
  two without one, each times a fixed number, and shares keys and values among heads. Here memories
  also begin longer, see `config.notes`.

Not the paper's: `data.tokenizer.kind`; the released script has a vocabulary of 32,000 pieces, here BPE
of as many is learned from the training split. `num_heads`, which differ by memory in the papers, and
`d_feed_forward` are those of the released DeltaNet of this size for all. `b2` and `weight_decay` are
usual values; the papers' texts differ. Documents are read on from segment to segment, where the papers
cut them, so the state is not empty when a segment begins.
"""

from typing import Any

from longmem_jax.config.base import base, read_bytes, size, two_cores
from longmem_jax.config.recipes import given, use
from longmem_jax.config.variants import one_of, variant
from longmem_jax.errors import UsageError

DELTA_RULES = ('delta_net', 'gated_delta_net', 'kimi_delta')
# By name the layers, and fields of some; ATTENTION|MEMORY has the two side by side.
HYBRIDS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    'qwen3_next': (
        '3*gated_delta_net+full',
        # The norm of queries and keys is attention's alone.
        dict(full=dict(output_gate=True), gated_delta_net=dict(head_norm=False)),
    ),
    'kimi_linear': ('3*kimi_delta+full', dict(full=dict(position='none'))),
    'falcon_h1': ('full|mamba2', {}),
}


def get_config(arg=''):
    config = base()

    model = config.model
    size(config, layers=24, width=1024, heads=8, feed_forward=2816)  # 374 M parameters
    model.vocab_size = 32_000
    model.norm, model.norm_epsilon, model.pre_norm = 'rmsnorm', 1e-6, True
    model.dense.activation, model.dense.bias = 'swiglu', False
    model.tie_weights = model.scale_embedding = model.output_bias = False
    model.init_std = 0.02
    model.dtype = 'bfloat16'
    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_000
    config.optimizer.name = 'adamw'
    config.optimizer.learning_rate = 3e-4
    config.optimizer.b2 = 0.95
    config.optimizer.weight_decay = 0.01
    config.optimizer.schedule = 'cosine'
    config.optimizer.final_fraction = 0.1
    config.optimizer.warmup_steps = 1024
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 30_720
    config.train.num_lanes = 256  # x 2,048 = 2^19 tokens
    config.train.segment_length = 2048
    config.train.remat = True
    config.train.log_every = 100
    config.train.evaluate_every = 2048
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 16
    memories = {name: given(chunk=64) for name in DELTA_RULES}

    def tiny(config):
        """4 layers of 128 on bytes, some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=352)
        two_cores(config, steps=1000, lanes=8, segment=128)
        read_bytes(config)
        memories.clear()
        config.optimizer.learning_rate, config.optimizer.weight_decay = 2e-3, 0.0
        config.train.remat = False
        config.train.evaluate_every = 200
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500

    def hybrid(config, value):
        """The layers of a released model: qwen3_next, kimi_linear or falcon_h1."""
        one_of('hybrid', value, HYBRIDS)
        if any(item.startswith('memory=') for item in (arg or '').split(',')):
            raise UsageError(f'hybrid={value}: already names the layers; leave out memory=.')
        chosen.append(value)
        if value == 'qwen3_next':
            model.rotary_share, model.head_norm = 0.25, 'rmsnorm'

    def put(config, name, changes, **sizes):
        """As `use`, or the layers of `hybrid`."""
        if not chosen:
            return use(config, name, changes, **sizes)
        layers, fields = HYBRIDS[chosen[0]]
        memories['full'] = given(window=config.train.segment_length)
        for part, values in fields.items():
            memories.setdefault(part, given()).fields.update(values)
        use(config, layers.replace('|', '+'), memories, **sizes)
        if '|' in layers:  # both have their sections now; the second goes beside the first
            model.attention, model.beside = (
                (name,) * model.num_layers for name in layers.split('|')
            )

    chosen = []
    return variant(
        config, arg, memory='gated_delta_net', memories=memories, put=put, tiny=tiny, hybrid=hybrid
    )
