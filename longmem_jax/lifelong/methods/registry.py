"""All methods of lifelong learning, by name; each is imported when it is used."""

from longmem_jax.lifelong.learner import Method
from longmem_jax.registry import Registry

HERE = 'longmem_jax.lifelong.methods'
METHODS = Registry(
    'method',
    Method,
    {
        'sequential': f'{HERE}.sequential:METHOD',
        'replay': f'{HERE}.replay:METHOD',
        'agem': f'{HERE}.agem:METHOD',
        'online_ewc': f'{HERE}.online_ewc:METHOD',
        'mbpa': f'{HERE}.mbpa:METHOD',
        'mbpa_plus': f'{HERE}.mbpa:PLUS',
        'mbpa_random': f'{HERE}.mbpa:RANDOM',
        'meta_mbpa': f'{HERE}.meta_mbpa:METHOD',
        'oml_er': f'{HERE}.oml_er:METHOD',
        'anml_er': f'{HERE}.anml_er:METHOD',
        'maml_er': f'{HERE}.maml_er:METHOD',
    },
    kind='method',
)
