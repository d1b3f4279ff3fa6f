"""Infinity-former on PG-19, from scratch (Martins et al., 2022).

python -m longmem_jax.main --config=configs/infinity_former_pg19.py --config.data.path=PG19 --workdir=DIR
The model of configs/pg19.py with 512 basis functions, 512 samples and tau 0.5 behind a short-term
memory of 512. `:sticky=sampled` or `:sticky=quantile`; `:clear` empties the memory after 2,048
vectors, as the released code does; `:memory=transformer_xl` is the baseline; `:tiny` reads bytes on
two cores.
"""

from longmem_jax.config.base import base, stack, transformer_xl
from longmem_jax.config.recipes import infinity_former
from longmem_jax.config.variants import variant
from longmem_jax.errors import UsageError, unknown
from longmem_jax.memory.infinity_former.continuous import STICKY

MEMORIES = ('infinity_former', 'transformer_xl')


def get_config(arg=''):
    config = base()

    model = config.model
    stack(model, 12, 'infinity_former')
    model.vocab_size = 32_128
    model.d_model = model.d_embed = 1024
    model.num_heads, model.head_dim = 8, 128
    model.d_feed_forward = 4096
    model.dropout = 0.05
    model.dtype = 'bfloat16'
    model.infinity_former = infinity_former(512, 512, num_basis=512, widths=(0.005, 0.01))

    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_000

    config.optimizer.name = 'adafactor'
    config.optimizer.learning_rate = 1e-2
    config.optimizer.schedule = 'inverse_sqrt'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0

    config.train.num_steps = 500_000
    config.train.num_lanes = 256
    config.train.segment_length = 512
    config.train.loss_weights.kl = 1e-6
    config.train.log_every = 200
    config.train.evaluate_every = 5000
    config.evaluate.segment_length = 512
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64
    config.checkpoint.every = 5000

    def sticky(config, kind):
        if kind not in STICKY:
            raise UsageError(unknown('sticky', kind, STICKY))
        if 'infinity_former' in model:
            model.infinity_former.sticky = kind

    def clear(config):
        """The memory threshold of the released GPT-2 code."""
        if 'infinity_former' in model:
            model.infinity_former.update(memory_threshold=2048, threshold_kind='clear')

    def memory(config, name):
        if name not in MEMORIES:
            raise UsageError(unknown('memory', name, MEMORIES))
        if name == 'transformer_xl' and 'infinity_former' in model:
            length = model.infinity_former.memory_length
            del model.infinity_former
            del config.train.loss_weights.kl
            stack(model, model.num_layers, name)
            model.transformer_xl = transformer_xl(length)

    def tiny(config):
        """3 layers of 128 on bytes, some minutes on two cores."""
        stack(model, 3, model.attention[0])
        model.vocab_size = 257
        model.d_model = model.d_embed = 128
        model.num_heads, model.head_dim = 4, 32
        model.d_feed_forward = 512
        model.dropout = 0.0
        model.dtype = 'float32'
        if 'infinity_former' in model:
            model.infinity_former.update(
                memory_length=64,
                write_length=64,
                num_basis=64,
                widths=(0.02, 0.05),
                num_samples=128,
            )
        else:
            model.transformer_xl.memory_length = 64
        config.data.tokenizer = dict(kind='bytes', path='', size=0)
        config.optimizer.name = 'adam'
        config.optimizer.learning_rate = 2e-3
        config.optimizer.schedule = 'cosine'
        config.optimizer.warmup_steps = 50
        config.train.num_steps = 600
        config.train.num_lanes = 8
        config.train.segment_length = 64
        config.train.log_every = 20
        config.train.evaluate_every = 200
        config.evaluate.segment_length = 64
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500
        config.checkpoint.every = 200

    return variant(config, arg, tiny=tiny, memory=memory, sticky=sticky, clear=clear)
