"""All methods of lifelong learning, by name."""

from longmem_jax.lifelong.learner import Method
from longmem_jax.lifelong.methods import agem, mbpa, meta_mbpa, online_ewc, replay, sequential

METHODS: dict[str, Method] = {
    'sequential': sequential.METHOD,
    'replay': replay.METHOD,
    'agem': agem.METHOD,
    'online_ewc': online_ewc.METHOD,
    'mbpa': mbpa.METHOD,
    'mbpa_plus': mbpa.PLUS,
    'mbpa_random': mbpa.RANDOM,
    'meta_mbpa': meta_mbpa.METHOD,
}
