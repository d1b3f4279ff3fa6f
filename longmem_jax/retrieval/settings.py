"""The rules of `config.retrieval`."""

from typing import Any

from longmem_jax.config.checks import context_problems
from longmem_jax.models import kinds
from longmem_jax.problems import above, at_least, between, one_of, under

KINDS = ('none', 'knn_lm', 'cache', 'knn_lm_cache', 'spalm', 'spalm_knn_lm')
# The kinds that mix neighbours, or a cache, into the model's prediction.
WITH_NEIGHBOURS = ('knn_lm', 'knn_lm_cache', 'spalm_knn_lm')
WITH_CACHE = ('cache', 'knn_lm_cache')
INDICES = ('exact', 'faiss')
KEYS = ('feed_forward', 'feed_forward_raw', 'hidden', 'hidden_raw')
KEY_TYPES = ('float16', 'float32')
STARTS = ('trained', 'fresh')


def check(config: Any) -> list[str]:
    """Problems of `config.retrieval`, if there is one."""
    if 'retrieval' not in config:
        return []
    fields, kind = config.retrieval, config.model.kind
    problems = under('config.retrieval', _fields(fields, config.model.d_model))
    # It follows the other one, and need not be named twice.
    if fields.context != config.evaluate.context:
        problems += context_problems(config, 'retrieval')
    known = kinds.KINDS
    if fields.kind != 'none' and kind in known and known[kind].reads != 'texts':
        problems.append(
            f"config.retrieval.kind = {fields.kind!r}: must be 'none' for models of the kind {kind!r}"
        )
    return problems


def _fields(settings: Any, width: int) -> list[str]:
    """Problems of fields; `width` of the keys, `config.model.d_model`."""
    problems = one_of(settings, kind=KINDS, key=KEYS, index=INDICES, dtype=KEY_TYPES)
    problems += between(settings, 0, 1, 'share', 'cache_share') + _spalm(settings.spalm)
    if settings.kind == 'knn_lm_cache' and settings.share + settings.cache_share > 1:
        total = settings.share + settings.cache_share
        problems.append(f'share + cache_share = {total}: must be at most 1')
    problems += at_least(settings, 0, 'cache_flatness', 'resident_gib', 'rerank')
    problems += at_least(settings, 0, 'tune_tokens', 'report_tokens') + _code_size(settings, width)
    return problems + above(
        settings, 0, 'temperature', 'k', 'cache_length', 'block_size', 'probe',
        'centroids', 'code_size', 'train_keys', 'shard_tokens',
    )  # fmt: skip


def _spalm(settings: Any) -> list[str]:
    """Problems of `config.retrieval.spalm`."""
    problems = one_of(settings, start=STARTS) + above(settings, 0, 'k', 'learning_rate')
    problems += at_least(settings, 0, 'num_steps')
    if settings.start == 'fresh' and settings.frozen:
        problems.append("frozen = True: a model that starts 'fresh' must be trained")
    return under('spalm', problems)


def _code_size(settings: Any, width: int) -> list[str]:
    """Problems of the codes of FAISS, each byte of which encodes an equal part of a key."""
    size, used = settings.code_size, settings.kind in (*WITH_NEIGHBOURS, 'spalm')
    if not used or settings.index != 'faiss' or size < 1 or width % size == 0:
        return []
    allowed = [number for number in range(1, width + 1) if width % number == 0]
    near = sorted(sorted(allowed, key=lambda number: abs(number - size))[:2])
    return [
        f'code_size = {size}: must divide config.model.d_model = {width}, the width of keys; the '
        f'nearest that do are {" and ".join(map(str, near))}'
    ]
