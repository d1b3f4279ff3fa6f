r"""kNN-LM on WikiText-103: an adaptive-input Transformer and its datastore (Khandelwal et al., 2020).

M="python -m longmem_jax.main --config=configs/knn_lm_wikitext103.py --config.data.path=wikitext-103 \
    --config.retrieval.datastore=STORE --workdir=DIR"
$M; $M --mode=build_datastore; $M --mode=evaluate --config.retrieval.kind=knn_lm
16 layers of 1,024 (Baevski and Auli, 2019), segments of 3,072 without a memory. Test: 512 tokens after
2,560 of context; keys: 1,536 after 1,536. 1,024 neighbours by FAISS with lambda 0.25, distances computed
again from the stored keys. Published perplexities (test): model 18.65, kNN-LM 16.12, with a continuous
cache (`kind=knn_lm_cache`) 15.79. `--config.retrieval.rerank=0` trusts FAISS's distances (validation:
16.5 instead of 16.06). `:tiny` is for two cores.

Not the paper's: `num_heads` 8 is that of the released code, the paper says 16; `vocab_size` is rounded
up to divide over devices; `embedding_dropout` also falls on the last layer's output, where the paper's
adaptive softmax drops 0.2 of its input and of its tails; `dtype` is for accelerators; `data.pieces`
fills the lanes, which the paper's blocks of 3,072 tokens do by themselves. Queries, keys and values
begin with Xavier's values without the released code's gain of 2**-0.5 (`init`).
"""

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base('retrieval')

    model = config.model
    size(config, layers=16, width=1024, heads=8, feed_forward=4096)
    model.vocab_size = 267_744
    model.pre_norm, model.final_norm = True, False
    model.cutoffs, model.div_val = (20_000, 60_000), 4
    model.tie_projections = (True, True, True)
    model.dropout = model.attention_dropout = 0.1  # inside the feed-forward layers, and of weights
    model.residual_dropout = model.embedding_dropout = 0.3
    model.dtype = 'bfloat16'
    model.init = 'glorot_uniform'

    config.data.tokenizer.kind = 'words'
    config.data.pieces = 24
    optimizer = config.optimizer
    optimizer.name, optimizer.momentum = 'nesterov', 0.99
    optimizer.learning_rate, optimizer.schedule, optimizer.warmup_steps = 1.0, 'cosine', 16_000
    optimizer.clip_norm = 0.1
    config.train.num_steps = 286_000
    config.train.num_lanes = 24  # three accumulated on each of 8 devices
    config.train.segment_length = 3072
    config.train.log_every = 200
    config.train.evaluate_every = 5000
    config.evaluate.context = 2560
    config.evaluate.num_lanes = 8
    config.generate.sample_length = 100

    retrieval = config.retrieval
    retrieval.context = 1536
    retrieval.k, retrieval.share, retrieval.temperature, retrieval.tune_tokens = 1024, 0.25, 1.0, 0
    retrieval.index, retrieval.centroids, retrieval.code_size = 'faiss', 4096, 64
    retrieval.probe, retrieval.train_keys, retrieval.rerank = 32, 1_000_000, 1.0

    def tiny(config):
        """4 layers of 128, exact search, tuned on validation; some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=500, lanes=16, segment=64)
        model.vocab_size = 20_480
        model.final_norm = True
        model.cutoffs, model.div_val = (2000, 8000), 2
        model.dropout, model.residual_dropout, model.embedding_dropout = 0.1, -1.0, -1.0
        config.optimizer.momentum = 0.0
        config.data.pieces = 16
        config.train.evaluate_every = 100
        config.evaluate.context, config.retrieval.context = 48, 32
        config.retrieval.index, config.retrieval.k = 'exact', 256
        config.retrieval.tune_tokens = 20_000

    memories = dict(local=given(position='none'))
    config = variant(config, arg, memory='local', memories=memories, tiny=tiny)
    if 'local' in model and model.local.position == 'none':  # the paper's model, without a memory
        model.position, model.attention_bias = 'sinusoidal', 'all'
    return config
