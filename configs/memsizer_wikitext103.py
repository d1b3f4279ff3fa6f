"""MemSizer on WikiText-103, words, adaptive softmax (Zhang and Cai, 2022; the released script).

python -m longmem_jax.main --config=configs/memsizer_wikitext103.py --config.data.path=wikitext-103 \
    --workdir=DIR
32 layers of 1,024, 32 slots, segments of 512 that are read by themselves, as in the paper;
`:carry` lets the slots go on from segment to segment. `:attention=elu`, `:attention=rfa` and
`:attention=t2r` are the linear attentions that it is compared with. Windows overlap in evaluation:
the last 256 of 512 tokens are scored. `:tiny` is for two cores.
"""

from longmem_jax.config.base import base, stack
from longmem_jax.config.recipes import linear
from longmem_jax.config.variants import variant
from longmem_jax.errors import UsageError, unknown

ATTENTIONS = ('memsizer', 'elu', 'rfa', 't2r')


def get_config(arg=''):
    config = base()

    model = config.model
    del model.transformer_xl
    model.vocab_size = 267_744
    model.num_layers = 32
    model.d_model = model.d_embed = 1024
    model.num_heads, model.head_dim = 8, 128
    model.d_feed_forward = 4096
    model.position = 'sinusoidal'
    model.pre_norm, model.final_norm = True, False
    model.cutoffs = (20_000, 60_000)
    model.div_val = 4
    model.tie_projections = (True, True, True)
    model.dropout, model.attention_dropout, model.layer_drop = 0.2, 0.1, 0.2
    model.dtype = 'bfloat16'
    chosen = dict(attention='memsizer', carry=False, slots=32, size=64, chunk=64)

    config.data.tokenizer.kind = 'words'
    config.data.pieces = 64

    # The paper's Nesterov SGD with a cosine that begins anew is Adam with one cosine here.
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 16_000
    config.optimizer.clip_norm = 0.1

    config.train.num_steps = 286_000
    config.train.num_lanes = 144  # 3 x 3,072 tokens on 8 devices
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 5000
    config.evaluate.segment_length = 512
    config.evaluate.context = 256
    config.evaluate.num_lanes = 8
    config.checkpoint.every = 5000

    def change(**changes):
        chosen.update(changes)
        for name in ('memsizer', 'linear'):
            if name in model:
                del model[name]
        if chosen['attention'] == 'memsizer':
            stack(model, model.num_layers, 'memsizer')
            model.memsizer = dict(
                num_slots=chosen['slots'], bias=True, chunk=chosen['chunk'], carry=chosen['carry'],
                gradients=True,
            )  # fmt: skip
        else:
            stack(model, model.num_layers, 'linear')
            model.linear = linear(
                chosen['attention'], chosen['size'], chosen['chunk'], carry=chosen['carry']
            )

    def attention(config, name):
        if name not in ATTENTIONS:
            raise UsageError(unknown('attention', name, ATTENTIONS))
        change(attention=name)

    def carry(config):
        """Sums and slots go on into the next segment; so windows need not overlap."""
        change(carry=True)
        config.evaluate.context = 0

    def tiny(config):
        """4 layers of 128, 16 slots, some minutes on two cores."""
        model.num_layers = 4
        model.vocab_size = 20_480
        model.d_model = model.d_embed = 128
        model.num_heads, model.head_dim = 4, 32
        model.d_feed_forward = 512
        model.final_norm = True
        model.cutoffs = (2000, 8000)
        model.div_val = 2
        model.tie_projections = (False, True, True)
        model.dropout, model.attention_dropout, model.layer_drop = 0.1, 0.0, 0.0
        model.dtype = 'float32'
        config.data.pieces = 16
        config.optimizer.learning_rate = 2e-3
        config.optimizer.warmup_steps = 50
        config.train.num_steps = 500
        config.train.num_lanes = 16
        config.train.segment_length = 64
        config.train.log_every = 20
        config.train.evaluate_every = 100
        config.evaluate.segment_length = 64
        config.evaluate.context = min(config.evaluate.context, 32)
        config.evaluate.num_lanes = 1
        config.checkpoint.every = 100
        change(slots=16, size=32, chunk=32)

    change()
    return variant(config, arg, tiny=tiny, attention=attention, carry=carry)
