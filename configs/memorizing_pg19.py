"""Memorizing Transformer on PG-19 (Wu et al., 2022, Sec. 4).

python -m longmem_jax.main --config=configs/memorizing_pg19.py --config.data.path=PG19 --workdir=DIR
12 layers of 1,024, segments and an XL cache of 512, 8,192 memories in layer 9, k = 32. The paper's
other rows: `:size=65536` and `:size=262144`, larger memories; `:size=0`, none; `:segment=2048`,
segments and a cache of 2,048; `:no_cache`, no XL cache; `:layer=3`, the memory in another layer;
`:k=128`. `:size=262144,from=WORKDIR` continues a run with another memory, or none, for 20,000 steps,
as the paper does from 131,072 memories on. Memories are bfloat16, 8.6, 69 and 275 GB for all 256 lanes,
split over the devices by lanes; `config.mesh.memory` also splits the entries of a lane. `:tiny` reads
bytes, for two cores. Published with another vocabulary, perplexity per token: 11.93 (8k), 11.62 (65k),
12.34 without.

Not the paper's: `data.tokenizer.kind`, BPE pieces for SentencePiece's, as many; `vocab_size` is rounded
up to divide over devices. `groups`: gates have Adam and .3 of the rate, so .01 at most, since
Adafactor's steps are relative and gates begin at 0. `clip_norm` is a guard against bursts. `init_std`
d_model**-0.5 is not said. The released code adds no output bias and divides logits by sqrt(d_model);
here the output has one, and `scale_embedding` multiplies the token vectors, which are short, instead.
From another run: `schedule` 'constant' at the rate of step 500,000, and the optimizer starts from zero.
"""

from typing import Any

from longmem_jax.config.base import base, read_bytes, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import new_segment, one_of, variant, whole_number
from longmem_jax.configs._pg19 import pg19
from longmem_jax.errors import UsageError


def get_config(arg=''):
    config = base()

    pg19(config)
    config.model.norm = 'rmsnorm'
    config.model.dense.bias = False
    local: dict[str, Any] = dict(memory_length=512, scale_init=1.0)
    memories = dict(
        memorizing=given(
            attention=with_memory_in(9),
            memory_size=8192,
            block_size=8192,
            cache_dtype='bfloat16',
            skip_gate_when_empty=False,
            groups=(('attention/gate$', 0.3, False, 'adam'),),
            **local,
        ),
        normalized_xl=given(**local),
    )
    # Going on from another run: the rest of the schedule is almost constant.
    going_on = dict(learning_rate=500_000**-0.5, schedule='constant', warmup_steps=0)

    def tiny(config):
        """4 layers of 128 on bytes, a memory of 2,048 in the third; some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=600, lanes=8, segment=128)
        read_bytes(config)
        # From a scale of 1, Adam would need thousands of steps before attention tells keys apart.
        local.update(memory_length=128, scale_init=8.0)
        memories['normalized_xl'].fields.update(local)
        memories['memorizing'].fields.update(local, memory_size=2048, cache_dtype='float32')
        # The recipe's: the memory in the second-to-last layer, and gates with five times the rate.
        memories['memorizing'].attention, memories['memorizing'].groups = (), None
        going_on.clear()
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500

    def segment(config, value):
        """Segments, and an XL cache, of another length, with as many tokens per update."""
        set_local(memory_length=new_segment(config, value))

    def no_cache(config):
        """No XL cache: the memory, if any, is all that reaches beyond the segment."""
        set_local(memory_length=0)

    def set_local(**fields):
        local.update(fields)
        for memory in memories.values():
            memory.fields.update(fields)

    def layer(config, value):
        """The layer with the memory, from 1."""
        number = one_of('layer', value, [str(i + 1) for i in range(config.model.num_layers)])
        memories['memorizing'].attention = with_memory_in(int(number), config.model.num_layers)

    def neighbours(config, value):
        """Another number of memories that a query reads."""
        memories['memorizing'].fields.update(top_k=whole_number('k', value))

    def memory_size(config, value):
        """Another number of memories; 0 = none."""
        if not value.isdigit():
            raise UsageError(f'size={value}: must be an integer, the number of memories; 0 = none.')
        memories['memorizing'].fields.update(memory_size=int(value))
        if not int(value):
            memories['memorizing'] = given('normalized_xl', **local)

    def start_from(config, workdir):
        """Starts from the parameters of another run."""
        config.train.start_from = workdir
        if going_on:
            config.train.num_steps = 20_000
            config.optimizer.update(going_on)

    more: dict[str, Any] = {
        'segment': segment, 'no_cache': no_cache, 'layer': layer, 'k': neighbours,
        'size': memory_size, 'from': start_from,
    }  # fmt: skip
    return variant(config, arg, memory='memorizing', memories=memories, tiny=tiny, **more)


def with_memory_in(layer, num_layers=12):
    """Names of the attention layers, the memory in `layer`, from 1."""
    names = ['normalized_xl'] * num_layers
    names[layer - 1] = 'memorizing'
    return tuple(names)
