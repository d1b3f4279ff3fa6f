"""The data sets, read from their original files, that `config.data.source` may name."""

from longmem_jax.data.sets import superglue
from longmem_jax.data.sets.pieces import DataSet

DATA_SETS: dict[str, DataSet] = {'superglue': superglue.DATA_SET}
