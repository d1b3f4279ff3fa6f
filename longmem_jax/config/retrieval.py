"""The fields of `config.retrieval`, checked."""

from typing import Any

from longmem_jax.errors import unknown

KINDS = ('none', 'knn_lm', 'cache', 'knn_lm_cache', 'spalm')
# Of these: what is mixed with the prediction of the model.
WITH_NEIGHBOURS = ('knn_lm', 'knn_lm_cache')
WITH_CACHE = ('cache', 'knn_lm_cache')
INDICES = ('exact', 'faiss')
KEY_TYPES = ('float16', 'float32')


def check(settings: Any) -> list[str]:
    """Faults of `config.retrieval`."""
    faults = []
    if settings.kind not in KINDS:
        faults.append(unknown('config.retrieval.kind', settings.kind, KINDS))
    for name, allowed in (('index', INDICES), ('dtype', KEY_TYPES)):
        if settings[name] not in allowed:
            faults.append(unknown(f'config.retrieval.{name}', settings[name], allowed))
    for name in ('share', 'cache_share'):
        if not 0 <= settings[name] <= 1:
            faults.append(
                f'config.retrieval.{name} = {settings[name]}: a share of the probability (lambda), '
                'from 0 to 1'
            )
    if settings.kind == 'knn_lm_cache' and settings.share + settings.cache_share > 1:
        faults.append('config.retrieval.share + cache_share: must be at most 1')
    for name in ('temperature', 'cache_temperature', 'k', 'cache_length', 'block_size', 'probe',
                 'centroids', 'code_size', 'rerank', 'train_keys', 'shard_tokens'):  # fmt: skip
        if settings[name] <= 0:
            faults.append(f'config.retrieval.{name} = {settings[name]}: must be above 0')
    return faults
