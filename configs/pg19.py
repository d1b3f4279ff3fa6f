"""Transformer-XL on PG-19 at the size of the long-memory papers' baseline (Wu et al., 2022, Sec. 4.2).

python -m longmem_jax.main --config=configs/pg19.py --config.data.path=PG19 --workdir=DIR
12 layers of 1,024, segments of 512 tokens, a memory of 512, 2^17 tokens per update. `:segment=2048` has
segments and a memory of 2,048. Published with another vocabulary, perplexity per token: 12.34 (512),
11.88 (2,048; also the baseline of Munkhdalai et al., 2024, Table 2). The same model with the layers and
norms of the Memorizing Transformer is configs/memorizing_pg19.py:size=0. `:memory=compressive` is Rae
et al.'s memory in this model, not their model. `:tiny` reads bytes, minutes on two cores.

Not the paper's: `data.tokenizer.kind`, the paper has 32,000 SentencePiece pieces; here BPE of as many
is learned from the training split, unless `data.tokenizer.path` is set. `vocab_size` is rounded up to
divide over devices. `clip_norm` is ours: a guard against bursts. `position` and `norm` are those of Dai
et al. (2019).
"""

from longmem_jax.config.base import base, read_bytes, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import new_segment, variant
from longmem_jax.configs._pg19 import pg19


def get_config(arg=''):
    config = base()

    pg19(config)
    memories = dict(transformer_xl=given(memory_length=512))

    def tiny(config):
        """4 layers of 160 on bytes, some minutes on two cores."""
        size(config, layers=4, width=160, heads=4, feed_forward=640)
        two_cores(config, steps=1000, lanes=16, segment=128)
        read_bytes(config)
        memories['transformer_xl'] = given(
            memory_length=256, evaluate=dict(memory_length=512, clamp_length=384)
        )
        config.train.evaluate_every = 200
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 200
        config.evaluate.max_test_segments = 1000

    def segment(config, value):
        """Segments, and a memory, of another length, with as many tokens per update."""
        length = new_segment(config, value)
        memories['transformer_xl'] = given(memory_length=length)

    return variant(
        config, arg, memory='transformer_xl', memories=memories, tiny=tiny, segment=segment
    )
