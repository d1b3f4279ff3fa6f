"""MemSizer on WikiText-103, words, adaptive softmax (Zhang and Cai, 2022; the released script).

python -m longmem_jax.main --config=configs/memsizer_wikitext103.py --config.data.path=wikitext-103 \
    --workdir=DIR
32 layers of 1,024, 32 slots, segments of 512 that are read independently, as in the paper; `:carry`
carries the slots from segment to segment. The paper compares with the linear attentions
`:memory=linear` (ELU), `:memory=rfa` and `:memory=t2r`. Evaluation windows overlap: the last 256 of 512
tokens are scored. `:tiny` is for two cores.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant

MEMORIES = ('memsizer', 'linear', 'rfa', 't2r')


def get_config(arg=''):
    config = base()

    model = config.model
    size(config, layers=32, width=1024, heads=8, feed_forward=4096)
    model.vocab_size = 267_744
    model.pre_norm, model.final_norm = True, False
    model.cutoffs = (20_000, 60_000)
    model.div_val = 4
    model.tie_projections = (True, True, True)
    model.dropout, model.attention_dropout, model.layer_drop = 0.2, 0.1, 0.2
    model.dtype = 'bfloat16'
    memories = {name: given(chunk=64, carry=False) for name in MEMORIES}

    def features(slots, size, chunk):
        for name in MEMORIES:
            fields = dict(num_slots=slots) if name == 'memsizer' else dict(size=size)
            memories[name].fields.update(fields, chunk=chunk)

    features(slots=32, size=64, chunk=64)

    config.data.tokenizer.kind = 'words'
    config.data.pieces = 64
    # Adam with one cosine, instead of the paper's Nesterov SGD with restarts.
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 16_000
    config.optimizer.clip_norm = 0.1
    config.train.num_steps = 286_000
    config.train.num_lanes = 144  # 3 x 3,072 tokens on 8 devices
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 5000
    config.evaluate.context = 256
    config.evaluate.num_lanes = 8

    def tiny(config):
        """4 layers of 128, 16 slots, some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=500, lanes=16, segment=64)
        model.vocab_size = 20_480
        model.final_norm = True
        model.cutoffs = (2000, 8000)
        model.div_val = 2
        model.tie_projections = (False, True, True)
        model.dropout = 0.1
        features(slots=16, size=32, chunk=32)
        config.data.pieces = 16
        config.train.evaluate_every = 100
        config.evaluate.context = 32
        config.evaluate.num_lanes = 1

    def carry(config):
        """Carries sums and slots to the next segment, so windows need not overlap."""
        for memory in memories.values():
            memory.fields.update(carry=True)
        config.evaluate.context = 0

    return variant(config, arg, memory='memsizer', memories=memories, tiny=tiny, carry=carry)
