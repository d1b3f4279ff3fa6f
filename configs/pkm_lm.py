"""Product-key memories in a language model (Lample et al., 2019, Sec. 4).

python -m longmem_jax.main --config=configs/pkm_lm.py --config.data.path=TEXTS --workdir=DIR
16 layers of 1,024 with memories of 512 x 512 slots instead of the feed-forward layers 6 and 12. The
paper's other sizes: `:layers=12`, `:layers=24`, `:width=1600`; `:places=3`, memories at regular
intervals, `:plain`, none. `--config.model.product_key.num_keys=`, `.num_heads=`, `.top_k=` and
`.query_norm=` are its ablations. The paper's data, CC-News, is not public; any text will do. `:tiny`
reads bytes, for two cores.

Not the paper's: the source gives places of memories for 16 layers only, so those of other depths, one
in the middle, are ours. `learning_rate`, and four times as much in `groups` for the values, are as
recalled from the authors' runs, not read; there the values have a sparse Adam, here a dense one.
`schedule`, `warmup_steps`, `clip_norm`, `num_steps`, `num_lanes`, `segment_length` and `dropout` are
ours. `vocab_size` is rounded up to divide over devices. `dtype` bfloat16 is ours.
"""

from longmem_jax.config.base import base, read_bytes, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.errors import UsageError

LAYERS = {12: 1, 16: 2, 24: 1}  # number of layers -> memories


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
    )

    def set_layers(num_layers, num_memories):
        """Memories at regular intervals, such as in layers 6 and 12 of 16."""
        model.num_layers = num_layers
        interval = -(-num_layers // (num_memories + 1))
        with_memory = [interval * (i + 1) for i in range(num_memories)]
        names = ('product_key' if i + 1 in with_memory else 'dense' for i in range(num_layers))
        memory.feed_forward = tuple(names)
        memory.groups = None if with_memory else ()  # None: the recipe's, for the values

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
        set_layers(4, 1)
        memory.feed_forward = ('dense', 'dense', 'product_key', 'dense')
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500

    def layers(config, value):
        """The number of layers, one of the paper's."""
        num_layers = whole_number('layers', value)
        if num_layers not in LAYERS:
            raise UsageError(f'layers={value}: the paper has {", ".join(map(str, LAYERS))}.')
        set_layers(num_layers, LAYERS[num_layers])

    def width(config, value):
        """Another width of the model, the feed-forward layers four times as wide."""
        number = whole_number('width', value)
        if number % model.num_heads:
            raise UsageError(f'width={value}: must be a multiple of the {model.num_heads} heads.')
        size(config, model.num_layers, number, model.num_heads, 4 * number)

    def places(config, value):
        """Another number of layers with a memory."""
        number = whole_number('places', value)
        if number > model.num_layers // 2:
            raise UsageError(f'places={value}: must be at most half of {model.num_layers} layers.')
        set_layers(model.num_layers, number)

    def plain(config):
        """Without memories."""
        set_layers(model.num_layers, 0)

    return variant(
        config,
        arg,
        memory='product_key',
        memories=dict(product_key=memory),
        tiny=tiny,
        layers=layers,
        width=width,
        places=places,
        plain=plain,
    )
