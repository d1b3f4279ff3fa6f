"""All that the file of a recurrent memory needs; see "A recurrent memory" in CONTRIBUTING."""

from longmem_jax.author.entry import logged, memory
from longmem_jax.author.fields import field, param
from longmem_jax.author.lane import Lane
from longmem_jax.author.recurrent import RecurrentMemory
from longmem_jax.layers.sight import Sight

__all__ = ['Lane', 'RecurrentMemory', 'Sight', 'field', 'logged', 'memory', 'param']
