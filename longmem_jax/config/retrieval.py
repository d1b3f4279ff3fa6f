"""The rules of `config.retrieval`."""

from typing import Any

from longmem_jax.faults import above, between, one_of

KINDS = ('none', 'knn_lm', 'cache', 'knn_lm_cache', 'spalm')
# The kinds that mix neighbours, or a cache, into the model's prediction.
WITH_NEIGHBOURS = ('knn_lm', 'knn_lm_cache')
WITH_CACHE = ('cache', 'knn_lm_cache')
INDICES = ('exact', 'faiss')
KEY_TYPES = ('float16', 'float32')


def check(settings: Any) -> list[str]:
    """Faults of `config.retrieval`."""
    faults = one_of(settings, kind=KINDS, index=INDICES, dtype=KEY_TYPES)
    faults += between(settings, 0, 1, 'share', 'cache_share')
    if settings.kind == 'knn_lm_cache' and settings.share + settings.cache_share > 1:
        total = settings.share + settings.cache_share
        faults.append(f'share + cache_share = {total}: must be at most 1')
    return faults + above(
        settings, 0, 'temperature', 'cache_temperature', 'k', 'cache_length', 'block_size', 'probe',
        'centroids', 'code_size', 'rerank', 'train_keys', 'shard_tokens',
    )  # fmt: skip
