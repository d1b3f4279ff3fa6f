"""The fields of `config.retrieval`, with neutral values."""

from typing import Any

from ml_collections import config_dict


def section(config: Any) -> None:
    """Sets `config.retrieval`."""
    config.retrieval = config_dict.create(
        kind='none',  # of --mode=evaluate: 'knn_lm', 'cache', 'knn_lm_cache', 'spalm', 'spalm_knn_lm'
        datastore='',  # folder of --mode=build_datastore
        # The vector of a token: 'feed_forward', the normalised input of the last feed-forward layer;
        # 'hidden', the input of the output layer; '..._raw', either before its norm.
        key='feed_forward',
        context=0,  # of --mode=build_datastore, as evaluate.context, unless set
        k=1024,  # neighbours per token at most
        temperature=1.0,  # of the softmax over distances of neighbours
        share=0.25,  # lambda: weight of the neighbours in the mixture
        cache_length=2048,  # tokens before the current one that the cache holds
        cache_flatness=2.0**-6,  # multiplies inner products of hidden vectors
        cache_share=0.1,  # lambda: weight of the cache
        tune_tokens=20_000,  # validation tokens for choosing k, temperatures, shares; 0 = as given
        report_tokens=20,  # tokens with the largest gain, in WORKDIR/retrieval.txt and .html
        dtype='float16',  # of the keys on disk, or 'float32'
        shard_tokens=1 << 20,  # keys in a file of a datastore
        verify=False,  # compare all checksums whenever a datastore is opened, not only once
        index='exact',  # or 'faiss'
        resident_gib=2.0,  # 'exact': keys stay on the devices if they take at most this on each
        block_size=1 << 16,  # 'exact': keys that are compared at a time
        centroids=4096,  # 'faiss': cells of the index
        code_size=64,  # 'faiss': bytes per key
        probe=32,  # 'faiss': cells that are searched
        # 'faiss': candidates per neighbour; 0 = trust the distances of FAISS's codes.
        rerank=4.0,
        train_keys=1_000_000,  # 'faiss': keys that centroids and codes are learned from
        seed=1,  # 'faiss': seed of the choice of these keys
        # --mode=train_spalm.
        spalm=dict(
            k=4,  # neighbours per token
            keys_from='',  # workdir of the model of the keys; '' = this run's, as it was trained
            start='trained',  # parameters at the first step: of this run's checkpoint, or 'fresh'
            frozen=False,  # train only the gate and the scale, not the model
            learned_scale=True,  # learn a scale of the neighbours' vectors; not in the paper
            learning_rate=1e-2,  # 'frozen': Adam's rate for the gate and the scale
            num_steps=0,  # training steps; 0 = config.train.num_steps
        ),
    )
