"""Infini-attention on PG-19 (Munkhdalai et al., 2024, Sec. 3.1).

python -m longmem_jax.main --config=configs/infini_pg19.py --config.data.path=PG19 --workdir=DIR
12 layers of 1,024, sequences of 32,768 tokens in 16 segments of 2,048 with gradients through the
memories, delta rule; `:rule=linear`. Gates have an optimizer of their own (Adam, 0.01): at the
rate of the model they hardly move. `:memory=transformer_xl` is the baseline; `:tiny` reads bytes on
two cores. Published with another vocabulary: perplexity 9.67 per token, linear 9.65.
"""

from longmem_jax.config.base import base, stack, transformer_xl
from longmem_jax.config.recipes import infini
from longmem_jax.config.variants import variant
from longmem_jax.errors import UsageError, unknown
from longmem_jax.layers.associative import RULES

MEMORIES = ('infini', 'transformer_xl')


def get_config(arg=''):
    config = base()

    model = config.model
    del model.transformer_xl
    stack(model, 12, 'infini')
    model.vocab_size = 32_128
    model.d_model = model.d_embed = 1024
    model.num_heads, model.head_dim = 8, 128
    model.d_feed_forward = 4096
    model.infini = infini()
    model.dropout = 0.0
    model.dtype = 'bfloat16'

    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_000

    config.optimizer.name = 'adafactor'
    config.optimizer.learning_rate = 1e-2
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0
    config.optimizer.groups = (('attention/gate$', 1.0, False, 'adam'),)

    config.train.num_steps = 100_000
    config.train.num_lanes = 64
    config.train.segment_length = 2048
    config.train.segments_per_step = 16
    config.train.remat = True
    config.train.log_every = 100
    config.train.evaluate_every = 2000
    config.evaluate.segment_length = 2048
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 16
    config.checkpoint.every = 2000

    def memory(config, name):
        if name not in MEMORIES:
            raise UsageError(unknown('memory', name, MEMORIES))
        if name == 'transformer_xl' and 'infini' in model:
            del model.infini
            stack(model, model.num_layers, name)
            model.transformer_xl = transformer_xl(config.train.segment_length)
            config.optimizer.groups = ()

    def rule(config, name):
        if name not in RULES:
            raise UsageError(unknown('rule', name, RULES))
        if 'infini' in model:
            model.infini.rule = name

    def tiny(config):
        """4 layers of 128 on bytes, some minutes on two cores."""
        stack(model, 4, model.attention[0])
        model.vocab_size = 257
        model.d_model = model.d_embed = 128
        model.num_heads, model.head_dim = 4, 32
        model.d_feed_forward = 512
        model.dtype = 'float32'
        if 'transformer_xl' in model:
            model.transformer_xl.memory_length = 64
        config.data.tokenizer = dict(kind='bytes', path='', size=0)
        config.optimizer.name = 'adam'
        config.optimizer.learning_rate = 2e-3
        config.optimizer.warmup_steps = 50
        if config.optimizer.groups:
            config.optimizer.groups = (('attention/gate$', 5.0, False),)
        config.train.num_steps = 600
        config.train.num_lanes = 8
        config.train.segment_length = 64
        config.train.segments_per_step = 4
        config.train.remat = False
        config.train.log_every = 20
        config.train.evaluate_every = 200
        config.evaluate.segment_length = 64
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 200
        config.evaluate.max_test_segments = 1000
        config.checkpoint.every = 200

    return variant(config, arg, tiny=tiny, memory=memory, rule=rule)
