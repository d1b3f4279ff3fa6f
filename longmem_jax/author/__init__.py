"""All that the file of a recurrent memory needs; see "A recurrent memory" in CONTRIBUTING."""

from longmem_jax.author.chunks import Sight
from longmem_jax.author.entry import logged, memory
from longmem_jax.author.fields import field, param
from longmem_jax.author.lane import Lane
from longmem_jax.author.recurrent import RecurrentMemory

__all__ = ['Lane', 'RecurrentMemory', 'Sight', 'field', 'logged', 'memory', 'param']
