"""Product-key memories in a language model (Lample et al., 2019, Sec. 4).

python -m longmem_jax.main --config=configs/pkm_lm.py --config.data.path=TEXTS --workdir=DIR
16 layers of 1,024 with memories of 512 x 512 slots in place of the feed-forward of layers 6 and 12;
`:layers=12` and `:layers=24` are the paper's others (memories in 6, and in 12), `:plain` has none.
Values learn at four times the rate of the model. The paper's data, CC-News, is not public; any text
will do. `:tiny` reads bytes on two cores.
"""

from longmem_jax.config.base import base, stack
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.errors import UsageError

PLACES = {12: (6,), 16: (6, 12), 24: (12,)}  # layers that hold a memory, from 1 on


def get_config(arg=''):
    config = base()

    model = config.model
    del model.transformer_xl
    stack(model, 16, 'local')
    model.vocab_size = 60_032
    model.d_model = model.d_embed = 1024
    model.num_heads, model.head_dim = 16, 64
    model.d_feed_forward = 4096
    model.local = dict(position='none')
    model.position = 'learned'
    model.dense.activation = 'gelu'
    model.pre_norm = model.final_norm = False
    model.dropout = 0.1
    model.dtype = 'bfloat16'
    memory = dict(
        num_keys=512,
        num_heads=4,
        top_k=32,
        query_dim=512,
        query_hidden=(),
        query_norm='batch',
        normalize_query=False,
        temperature=1.0,
        keys='product',
        chunk=1024,
    )

    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 60_000

    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'inverse_sqrt'
    config.optimizer.warmup_steps = 10_000
    config.optimizer.clip_norm = 1.0

    config.train.num_steps = 300_000
    config.train.num_lanes = 128
    config.train.segment_length = 256
    config.train.log_every = 200
    config.train.evaluate_every = 5000
    config.evaluate.segment_length = 256
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64
    config.checkpoint.every = 5000
    chosen = dict(layers=16, places=PLACES[16])

    def change(**changes):
        chosen.update(changes)
        stack(model, chosen['layers'], 'local')
        names = ['dense'] * chosen['layers']
        for place in chosen['places']:
            names[place - 1] = 'product_key'
        model.feed_forward = tuple(names)
        if 'product_key' in model:
            del model['product_key']
        config.optimizer.groups = ()
        if chosen['places']:
            model.product_key = memory
            config.optimizer.groups = (('feed_forward/values$', 4.0, False),)

    def layers(config, value):
        number = whole_number('layers', value)
        if number not in PLACES:
            raise UsageError(f'layers={value}: the paper has {", ".join(map(str, PLACES))}.')
        change(layers=number, places=PLACES[number] if chosen['places'] else ())

    def plain(config):
        """Without memories."""
        change(places=())

    def tiny(config):
        """4 layers of 128, 64 x 64 slots in the third; some minutes on two cores."""
        model.vocab_size = 257
        model.d_model = model.d_embed = 128
        model.num_heads, model.head_dim = 4, 32
        model.d_feed_forward = 512
        model.pre_norm = model.final_norm = True
        model.dropout = 0.0
        model.dtype = 'float32'
        memory.update(num_keys=64, top_k=16, query_dim=64, chunk=0)
        config.data.tokenizer = dict(kind='bytes', path='', size=0)
        config.optimizer.learning_rate = 2e-3
        config.optimizer.schedule = 'cosine'
        config.optimizer.warmup_steps = 50
        config.train.num_steps = 600
        config.train.num_lanes = 8
        config.train.segment_length = 128
        config.train.log_every = 20
        config.train.evaluate_every = 200
        config.evaluate.segment_length = 128
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500
        config.checkpoint.every = 200
        change(layers=4, places=(3,) if chosen['places'] else ())

    change()
    return variant(config, arg, tiny=tiny, layers=layers, plain=plain)
