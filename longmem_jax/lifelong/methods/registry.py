"""All methods of lifelong learning, by name."""

from longmem_jax.lifelong.learner import Method
from longmem_jax.lifelong.methods import (
    agem,
    anml_er,
    maml_er,
    mbpa,
    meta_mbpa,
    oml_er,
    online_ewc,
    replay,
    sequential,
)
from longmem_jax.registry import Registry

METHODS = Registry(
    'method',
    Method,
    {
        'sequential': sequential.METHOD,
        'replay': replay.METHOD,
        'agem': agem.METHOD,
        'online_ewc': online_ewc.METHOD,
        'mbpa': mbpa.METHOD,
        'mbpa_plus': mbpa.PLUS,
        'mbpa_random': mbpa.RANDOM,
        'meta_mbpa': meta_mbpa.METHOD,
        'oml_er': oml_er.METHOD,
        'anml_er': anml_er.METHOD,
        'maml_er': maml_er.METHOD,
    },
    kind='method',
)
