"""The fields of every configuration, with neutral values; a file in `configs/` sets its experiment's.

All fields live here or in the config file: code reads them and has no defaults of its own.
"""

from typing import Any

import ml_collections
from ml_collections import config_dict


def base() -> ml_collections.ConfigDict:
    """A configuration with every section; a small Transformer-XL on no data."""
    config = ml_collections.ConfigDict()
    config.model = config_dict.create(
        kind='language_model',  # or 'memformer', 'seq2seq', with a section of that name
        vocab_size=257,
        num_layers=2,
        d_model=128,
        d_embed=128,  # width of the (first cluster's) embedding vectors
        num_heads=4,
        head_dim=32,
        d_feed_forward=512,
        attention=('transformer_xl',) * 2,  # one name per layer; see memory/registry.py
        feed_forward=('dense',) * 2,
        transformer_xl=transformer_xl(128),
        dense=dict(activation='relu', bias=True),
        norm='layernorm',  # or 'rmsnorm'
        pre_norm=True,
        final_norm=True,
        scale_embedding=True,  # by sqrt(d_model)
        position='none',  # absolute positions: 'none', 'sinusoidal', 'learned'
        tie_weights=True,
        cutoffs=(),  # adaptive embedding and softmax: first token of cluster 1, 2, ...
        div_val=1,  # width of cluster i is d_embed / div_val**i
        tie_projections=(False,),  # per cluster: output projection = input projection
        dropout=0.0,
        residual_dropout=-1.0,  # of what layers add to the stream; -1 = dropout
        embedding_dropout=-1.0,  # of embeddings and of the last layer; -1 = dropout
        attention_dropout=0.0,
        layer_drop=0.0,  # share of blocks thrown away per training step
        init_std=0.02,
        dtype='float32',  # of activations; 'bfloat16' on accelerators
    )
    config.data = config_dict.create(
        source='text',  # 'stdlib', 'text', 'tfds', 'huggingface', 'parallel', or a task: data/tasks/
        path='',  # 'text', 'parallel': a folder with train, validation, test; 'text': or one file
        name='',  # 'tfds', 'huggingface': the data set; 'parallel': a TFDS set, where path is ''
        documents='file',  # what a document is: 'file', 'line', 'wiki', 'folder'
        endings=(),  # 'folder': only files whose names end so, such as ('.py',)
        fractions=(0.9, 0.05, 0.05),  # one file: its training, validation and test part
        pieces=1,  # cut training documents in so many, each on a lane of its own
        tokenizer=dict(kind='bytes', path='', size=0),
        # source 'parallel': the languages of a pair and the places for each side.
        pairs=dict(languages=('', ''), max_source=0, max_target=0),
        seed=0,  # order of the documents; what a task draws
        task=config_dict.create(),  # fields of a task
    )
    config.optimizer = config_dict.create(
        name='adam',
        learning_rate=2.5e-4,
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        weight_decay=0.0,
        momentum=0.0,  # 'sgd' only
        schedule='cosine',
        warmup_steps=0,
        final_fraction=0.0,  # last learning rate / highest
        clip_norm=0.25,
        accumulate_steps=1,
        # Parameter groups: (path pattern, rate multiplier, weight decay[, another optimizer]).
        groups=(),
    )
    config.train = config_dict.create(
        num_steps=1000,
        num_lanes=8,
        segment_length=128,
        segments_per_step=1,  # segments read, with gradient, per optimizer update
        remat=False,  # keep only the memories between segments for the backward pass
        log_every=50,
        evaluate_every=1000,
        seed=0,
        start_from='',  # workdir of another run: its parameters, where shapes agree, to begin with
        max_bad_steps=20,  # steps in a row that are not finite before the run ends
        z_loss=0.0,
        loss_weights=config_dict.create(),  # auxiliary losses of memories, by name
    )
    config.evaluate = config_dict.create(
        segment_length=128,
        num_lanes=8,
        context=0,  # tokens of a segment read again and not scored: overlapping windows
        max_segments=0,  # validation in training: segments per lane; 0 = all
        max_test_segments=0,  # the same for the final test and --mode=evaluate
        model=config_dict.create(),  # overrides of config.model, such as memory lengths
    )
    config.retrieval = config_dict.create(
        kind='none',  # of --mode=evaluate: 'knn_lm', 'cache', 'knn_lm_cache', 'spalm'
        datastore='',  # folder of --mode=build_datastore
        k=1024,  # neighbours, at most
        temperature=1.0,
        share=0.25,  # lambda of the neighbours
        cache_length=2048,
        cache_temperature=1.0,
        cache_share=0.1,  # lambda of the cache
        tune_tokens=20_000,  # of validation, to choose k, temperatures and shares; 0 = as given
        report_tokens=20,  # that gained most, in WORKDIR/retrieval.txt and .html
        dtype='float16',  # of the keys on disk, or 'float32'
        shard_tokens=1 << 20,
        verify=False,  # compute all checksums of a datastore when it is opened
        index='exact',  # or 'faiss'
        block_size=1 << 16,  # 'exact': keys on the devices at once
        centroids=4096,  # 'faiss'
        code_size=64,
        probe=32,
        rerank=4.0,  # candidates per neighbour
        train_keys=1_000_000,
        seed=1,
        spalm=dict(k=4, frozen=True, learning_rate=1e-2, num_steps=400),
    )
    config.generate = config_dict.create(
        length=500, temperature=1.0, top_k=0, top_p=0.95, seed=0, sample_length=200
    )
    config.translate = config_dict.create(
        beams=5,
        length_penalty=1.0,  # hypotheses rank by log-probability / length ** length_penalty
        num_lanes=16,  # sentences at a time
        max_sentences=0,  # of a split that BLEU is computed of; 0 = all
    )
    config.checkpoint = config_dict.create(every=1000, keep=3)
    config.mesh = config_dict.create(data=-1, fsdp=1, tensor=1, memory=1)  # -1: devices left
    return config


def transformer_xl(memory_length: int, **changes: Any) -> dict[str, Any]:
    """The sub-config of Transformer-XL as in the authors' PyTorch code."""
    return (
        dict(
            memory_length=memory_length,
            same_length=False,
            clamp_length=0,
            position='transformer_xl',
            share_biases=True,
            block_size=0,
        )
        | changes
    )


def stack(model: Any, num_layers: int, attention: str, feed_forward: str = 'dense') -> None:
    """Sets a stack of equal layers."""
    model.num_layers = num_layers
    model.attention = (attention,) * num_layers
    model.feed_forward = (feed_forward,) * num_layers
