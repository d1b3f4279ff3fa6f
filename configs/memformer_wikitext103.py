"""Memformer on WikiText-103, subwords (Wu et al., 2020).

python -m longmem_jax.main --config=configs/memformer_wikitext103.py \
    --config.data.path=wikitext-103 --workdir=DIR
4 encoder and 16 decoder layers of 512, 1,024 slots, segments of 128; the gradient goes through 8
segments, of which only the slots are kept (memory replay back-propagation). The paper's ablations:
`:decoder=12`, `:slots=512`. `:joint` is the encoder released for MemBART. The survey gives no
temperature, no vocabulary size and no number of summary tokens: 0.25, 32,000 and 8 are ours.
`:tiny` is for two cores.
"""

from longmem_jax.config.base import base, stack
from longmem_jax.config.variants import variant, whole_number


def get_config(arg=''):
    config = base()

    model = config.model
    del model.transformer_xl
    model.kind = 'memformer'
    model.local = dict(position='none')
    stack(model, 16, 'local')
    model.vocab_size = 32_000
    model.d_model = model.d_embed = 512
    model.num_heads, model.head_dim = 8, 64
    model.d_feed_forward = 2048
    model.position = 'sinusoidal'
    model.memformer = dict(
        encoder='slot_attention',
        num_encoder_layers=4,
        num_slots=1024,
        num_summaries=8,
        temperature=0.25,
        bias_std=0.01,  # 'joint' only
    )
    model.dropout = 0.1
    model.dtype = 'bfloat16'

    config.data.documents = 'wiki'
    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_000

    config.optimizer.name = 'adamw'
    config.optimizer.weight_decay = 0.01
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.warmup_steps = 2000
    config.optimizer.clip_norm = 1.0

    config.train.num_steps = 150_000
    config.train.num_lanes = 64
    config.train.segment_length = 128
    config.train.segments_per_step = 8
    config.train.remat = True
    config.train.log_every = 100
    config.train.evaluate_every = 2000
    config.evaluate.segment_length = 128
    config.evaluate.num_lanes = 16
    config.evaluate.max_segments = 200
    config.generate.sample_length = 200
    config.checkpoint.every = 2000

    def decoder(config, number):
        stack(model, whole_number('decoder', number), 'local')

    def slots(config, number):
        model.memformer.num_slots = whole_number('slots', number)

    def joint(config):
        """The encoder of MemBART: post-norm, slots beside tokens in every layer, a gate."""
        model.memformer.encoder = 'joint'

    return variant(config, arg, tiny=tiny, decoder=decoder, slots=slots, joint=joint)


def tiny(config):
    """2 encoder and 3 decoder layers of 128, 32 slots, some minutes on two cores."""
    model = config.model
    stack(model, 3, 'local')
    model.vocab_size = 2000
    model.d_model = model.d_embed = 128
    model.num_heads, model.head_dim = 4, 32
    model.d_feed_forward = 512
    model.memformer.num_encoder_layers = 2
    model.memformer.num_slots = 32
    model.memformer.num_summaries = 4
    model.dropout = 0.1
    model.dtype = 'float32'
    config.data.tokenizer.size = 2000
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 50
    config.train.num_steps = 200
    config.train.num_lanes = 8
    config.train.segment_length = 64
    config.train.segments_per_step = 4
    config.train.log_every = 20
    config.train.evaluate_every = 100
    config.evaluate.segment_length = 64
    config.evaluate.num_lanes = 4
    config.evaluate.max_segments = 0
    config.generate.sample_length = 50
    config.checkpoint.every = 100
