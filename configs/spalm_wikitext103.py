r"""SPALM on WikiText-103: a Transformer-XL trained with retrieved tokens (Yogatama et al., 2021).

D="--config.data.path=wikitext-103 --config.retrieval.datastore=STORE"
K="python -m longmem_jax.main --config=configs/spalm_wikitext103.py:memory=local --workdir=KEYS $D"
S="python -m longmem_jax.main --config=configs/spalm_wikitext103.py --workdir=DIR $D \
    --config.retrieval.spalm.keys_from=KEYS"
$K; $K --mode=build_datastore                                             # the model of the keys
$S --mode=train_spalm; $S --mode=evaluate --config.retrieval.kind=spalm
18 layers of 512, segments of 512, a memory of 512 in training and 3,072 in the test (or again 512:
`--config.evaluate.model.transformer_xl.memory_length=512`). Four neighbours of the final hidden vector
of a separate Transformer without memory; K from 1 to 16 was tried: `--config.retrieval.spalm.k=8`.
`--mode=train` without SPALM trains the Transformer-XL of the paper's table. `:tiny` is for two cores.

Not the paper's: `parameters` are 199 M where the paper counts 142 M: SPALM here needs one table of
output vectors, `cutoffs` (); `d_feed_forward`, `num_heads` and everything about optimiser and batch are
not known to us: `dropout`, `learning_rate`, `schedule`, `warmup_steps`, `clip_norm`, `num_steps`,
`num_lanes`. `vocab_size` is rounded up to divide over devices, `dtype` is for accelerators.
`documents` are articles, so that a token's own article is left out of its neighbours, and memories
are reset for each. `index` is FAISS with kNN-LM's settings where the paper has ScaNN, and `context` of
the keys is a choice of ours.
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base('retrieval')

    model = config.model
    size(config, layers=18, width=512, heads=8, feed_forward=2048)
    model.vocab_size = 267_744
    model.dropout = 0.1
    model.dtype = 'bfloat16'
    xl = given(memory_length=512, evaluate=dict(memory_length=3072))
    memories = dict(transformer_xl=xl)

    config.data.tokenizer.kind = 'words'
    config.data.documents = 'wiki'
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule, config.optimizer.warmup_steps = 'cosine', 4000
    config.optimizer.clip_norm = 0.25
    config.train.num_steps = 200_000
    config.train.num_lanes = 32
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 4000
    config.evaluate.num_lanes = 8
    config.evaluate.max_segments = 200
    config.generate.sample_length = 100

    retrieval = config.retrieval
    retrieval.key, retrieval.context = 'hidden', 256
    retrieval.index, retrieval.rerank = 'faiss', 4.0
    retrieval.spalm.update(k=4, start='fresh', frozen=False, learned_scale=False)

    def tiny(config):
        """4 layers of 128, exact search; some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=500, lanes=16, segment=64)
        model.vocab_size = 20_480
        model.dropout = 0.1
        xl.fields.update(memory_length=64)
        xl.evaluate.update(memory_length=128)
        config.train.evaluate_every = 100
        config.evaluate.num_lanes = 4
        config.evaluate.max_segments = 0
        config.retrieval.index, config.retrieval.context = 'exact', 32
        # Hidden vectors begin eleven times longer than output vectors, and the run is short.
        config.retrieval.spalm.learned_scale = True

    return variant(config, arg, memory='transformer_xl', memories=memories, tiny=tiny)
