"""Product-key memories in a language model (Lample et al., 2019, Sec. 4).

python -m longmem_jax.main --config=configs/pkm_lm.py --config.data.path=TEXTS --workdir=DIR
16 layers of 1,024 with memories of 512 x 512 slots instead of the feed-forward layers 6 and 12.
`:layers=12` (memory in 6) and `:layers=24` (in 12) are the paper's other models; `:plain` has no memory.
Values have four times the learning rate of the model. The paper's data, CC-News, is not public; any text
will do. `:tiny` reads bytes, for two cores.
"""

from longmem_jax.config.base import base, read_bytes, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.errors import UsageError

LAYERS = {12: (6,), 16: (6, 12), 24: (12,)}  # number of layers -> layers with a memory, from 1


def get_config(arg=''):
    config = base()

    model = config.model
    size(config, layers=16, width=1024, heads=16, feed_forward=4096)
    model.vocab_size = 60_032
    model.dense.activation = 'gelu'
    model.pre_norm = model.final_norm = False
    model.dropout = 0.1
    model.dtype = 'bfloat16'
    memory = given(
        'product_key_short',
        num_keys=512,
        top_k=32,
        query_dim=512,
        chunk=1024,
        groups=(('feed_forward/values$', 4.0, False),),
    )

    def set_layers(num_layers, with_memory):
        model.num_layers = num_layers
        names = ('product_key' if i + 1 in with_memory else 'dense' for i in range(num_layers))
        memory.feed_forward = tuple(names)

    set_layers(16, LAYERS[16])

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
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64

    def tiny(config):
        """4 layers of 128, 64 x 64 slots in the third; some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=600, lanes=8, segment=128)
        read_bytes(config)
        model.pre_norm = model.final_norm = True
        memory.fields.update(num_keys=64, top_k=16, query_dim=64, chunk=0)
        set_layers(4, (3,))
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500

    def layers(config, value):
        """The number of layers, one of the paper's."""
        num_layers = whole_number('layers', value)
        if num_layers not in LAYERS:
            raise UsageError(f'layers={value}: the paper has {", ".join(map(str, LAYERS))}.')
        set_layers(num_layers, LAYERS[num_layers])

    def plain(config):
        """Without memories."""
        set_layers(model.num_layers, ())
        memory.groups = ()

    changes = dict(tiny=tiny, layers=layers, plain=plain)
    return variant(config, arg, memory='product_key', memories=dict(product_key=memory), **changes)
