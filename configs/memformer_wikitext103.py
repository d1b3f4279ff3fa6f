"""Memformer on WikiText-103, subwords (Wu et al., 2020).

python -m longmem_jax.main --config=configs/memformer_wikitext103.py \
    --config.data.path=wikitext-103 --workdir=DIR
4 encoder and 16 decoder layers of 512, 1,024 slots, segments of 128; gradients through 8 segments, of
which only the slots are stored (memory replay back-propagation). The paper's ablations: `:decoder=12`,
`:slots=512`. `:joint` is the encoder released for MemBART. The survey gives no temperature, vocabulary
size or number of summary tokens: 0.25, 32,000 and 8 are our choices.
`:tiny` is for two cores.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant, whole_number


def get_config(arg=''):
    config = base()

    size(config, layers=16, width=512, heads=8, feed_forward=2048)
    config.model.vocab_size = 32_000
    config.model.dropout = 0.1
    config.model.dtype = 'bfloat16'
    memory = given(attention=('local',) * 16, num_encoder_layers=4, num_slots=1024, num_summaries=8)

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
    config.evaluate.num_lanes = 16
    config.evaluate.max_segments = 200
    config.generate.sample_length = 200

    def tiny(config):
        """2 encoder and 3 decoder layers of 128, 32 slots, some minutes on two cores."""
        size(config, layers=3, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=200, lanes=8, segment=64)
        config.model.vocab_size = config.data.tokenizer.size = 2000
        config.model.dropout = 0.1
        memory.attention = ('local',) * 3
        memory.fields.update(num_encoder_layers=2, num_slots=32, num_summaries=4)
        config.optimizer.name = 'adamw'
        config.train.segments_per_step = 4
        config.train.evaluate_every = 100
        config.evaluate.num_lanes = 4
        config.evaluate.max_segments = 0
        config.generate.sample_length = 50

    def decoder(config, number):
        """Another number of decoder layers."""
        memory.attention = ('local',) * whole_number('decoder', number)

    def slots(config, number):
        """Another number of slots."""
        memory.fields.update(num_slots=whole_number('slots', number))

    def joint(config):
        """The encoder of MemBART: post-norm, slots next to the tokens in every layer, a gate."""
        memory.fields.update(encoder='joint')

    memories = dict(memformer=memory)
    changes = dict(tiny=tiny, decoder=decoder, slots=slots, joint=joint)
    return variant(config, arg, memory='memformer', memories=memories, **changes)
