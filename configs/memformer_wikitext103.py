r"""Memformer on WikiText-103, subwords (Wu et al., 2020).

python -m longmem_jax.main --config=configs/memformer_wikitext103.py \
    --config.data.path=wikitext-103 --workdir=DIR
4 encoder and 16 decoder layers of 512, 1,024 slots, segments of 128; gradients through 8 segments, of
which only the slots are stored (memory replay back-propagation). Ablations: `:decoder=12`, `:slots=512`,
`:slots=0` (no memory), `:no_temperature`, `:no_forgetting`, `:one_head`; `:raw_slots` projects slots as
they are, as in the paper. The paper's baselines have 16 layers: `:memory=transformer_xl`, with
`:length=32` to 1600 vectors per layer, and `:memory=compressive`, 512 and 512 compressed by 4. `:joint`
is the encoder released for MemBART. The paper takes the median of three runs: vary `config.train.seed`.
`:tiny` is for two cores.

Not the paper's: the survey gives no `temperature`, `vocab_size`, `num_summaries`, `dropout`; 0.25,
32,000, 8 and 0.1 are our choices. So are the optimizer and its length: `optimizer.name` and
`weight_decay`, `learning_rate`, `warmup_steps`, `clip_norm`, `num_steps`, `num_lanes` and
`segments_per_step`. `normalized` and `bias_std`: slots and tokens are scaled before their projections,
and slots forget a twentieth of their length per write; the paper's keep nothing for more than two writes
before training (`memory/memformer/slot_attention.py`). `position`: the decoder's heads have rotary
positions in addition to the sinusoids of both sides; the survey gives no positions.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.errors import UsageError


def get_config(arg=''):
    config = base()

    size(config, layers=16, width=512, heads=8, feed_forward=2048)
    config.model.vocab_size = 32_000
    config.model.dropout = 0.1
    config.model.dtype = 'bfloat16'
    memory = given(attention=('local',) * 16, num_encoder_layers=4, num_slots=1024, num_summaries=8)
    memories = dict(
        memformer=memory,
        transformer_xl=given(memory_length=1024),
        compressive=given(memory_length=512, compressed_length=512, rate=4),
    )

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
        memories['transformer_xl'].fields.update(memory_length=64)
        memories['compressive'].fields.update(memory_length=32, compressed_length=32)
        config.optimizer.name = 'adamw'
        config.train.segments_per_step = 8
        config.train.evaluate_every = 100
        config.evaluate.num_lanes = 4
        config.evaluate.max_segments = 0
        config.generate.sample_length = 50

    def decoder(config, number):
        """Another number of decoder layers."""
        memory.attention = ('local',) * whole_number('decoder', number)

    def slots(config, number):
        """Another number of slots; 0 = no memory."""
        if not number.isdigit():
            raise UsageError(f'slots={number}: must be an integer, such as 512; 0 = no memory.')
        memory.fields.update(num_slots=int(number))

    def no_temperature(config):
        """The writer's softmax as it is."""
        memory.fields.update(temperature=1.0)

    def no_forgetting(config):
        """Slots do not drift back to where they began."""
        memory.fields.update(forgets=False)

    def one_head(config):
        """One head in the reader and the writer of slots."""
        memory.fields.update(slot_heads=1)

    def raw_slots(config):
        """Unit slots go through the projections as they are, and forget half of themselves per write."""
        memory.fields.update(normalized=False, bias_std=config.model.d_model**-0.5)

    def length(config, number):
        """Another memory of the Transformer-XL."""
        memories['transformer_xl'].fields.update(memory_length=whole_number('length', number))

    def joint(config):
        """The encoder of MemBART: post-norm, slots next to the tokens in every layer, a gate."""
        memory.fields.update(encoder='joint', bias_std=0.01)

    return variant(
        config,
        arg,
        memory='memformer',
        memories=memories,
        tiny=tiny,
        decoder=decoder,
        slots=slots,
        no_temperature=no_temperature,
        no_forgetting=no_forgetting,
        one_head=one_head,
        raw_slots=raw_slots,
        length=length,
        joint=joint,
    )
