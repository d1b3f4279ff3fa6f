"""Memorizing Transformer on PG-19 (Wu et al., 2022, Sec. 4).

python -m longmem_jax.main --config=configs/memorizing_pg19.py --config.data.path=PG19 --workdir=DIR
12 layers of 1,024, segments and an XL cache of 512, 8,192 memories in layer 9, k = 32. `:size=65536` and
`:size=262144` are the larger memories, `:size=0` has none; `:size=262144,from=WORKDIR` continues the
training of a run with another size. Memories are bfloat16, 8.6, 69 and 275 GB for all 256 lanes, split
over the devices by lanes; `config.mesh.memory` also splits the entries of a lane. `:tiny` reads bytes,
for two cores. Published with another vocabulary, perplexity per token: 11.93 (8k), 11.62 (65k), 12.34
without.
"""

from longmem_jax.config.base import base, read_bytes, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant
from longmem_jax.errors import UsageError


def get_config(arg=''):
    config = base()

    size(config, layers=12, width=1024, heads=8, feed_forward=4096)
    config.model.vocab_size = 32_128
    config.model.dropout = 0.05
    config.model.dtype = 'bfloat16'
    config.model.norm = 'rmsnorm'
    local = dict(memory_length=512, scale_init=1.0)
    memories = dict(
        memorizing=given(
            attention=('normalized_xl',) * 8 + ('memorizing',) + ('normalized_xl',) * 3,
            memory_size=8192,
            block_size=8192,
            cache_dtype='bfloat16',
            **local,
        ),
        normalized_xl=given(**local),
    )

    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_000
    config.optimizer.name = 'adafactor'
    config.optimizer.learning_rate = 1000**-0.5  # 1 / sqrt(step) after the warm-up: at most 0.0316
    config.optimizer.schedule = 'inverse_sqrt'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 500_000
    config.train.num_lanes = 256  # x 512 = 2^17 tokens
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 5000
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64

    def tiny(config):
        """4 layers of 128 on bytes, a memory of 2,048 in the third; some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=600, lanes=8, segment=128)
        read_bytes(config)
        # From a scale of 1, Adam would need thousands of steps before attention tells keys apart.
        local.update(memory_length=128, scale_init=8.0)
        memories['normalized_xl'].fields.update(local)
        memories['memorizing'].fields.update(local, memory_size=2048, cache_dtype='float32')
        memories[
            'memorizing'
        ].attention = ()  # the recipe's: the memory in the second-to-last layer
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500

    def memory_size(config, value):
        """Another number of memories; 0 = none."""
        if not value.isdigit():
            raise UsageError(f'size={value}: must be an integer, the number of memories; 0 = none.')
        memories['memorizing'].fields.update(memory_size=int(value))
        if not int(value):
            memories['memorizing'] = given('normalized_xl', **local)

    def start_from(config, workdir):
        config.train.start_from = workdir

    more = {'size': memory_size, 'from': start_from}
    return variant(config, arg, memory='memorizing', memories=memories, tiny=tiny, **more)
