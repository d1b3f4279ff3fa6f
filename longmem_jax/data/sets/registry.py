"""The data sets, read from their original files, that `config.data.source` may name."""

from longmem_jax.data.sets import passkey
from longmem_jax.data.sets.pieces import DataSet
from longmem_jax.hosts.data import cmu_dog, superglue, superglue_pairs
from longmem_jax.hosts.data.classes import ClassSet

DATA_SETS: dict[str, DataSet] = {
    'cmu_dog': cmu_dog.DATA_SET,
    'passkey': passkey.DATA_SET,
    'superglue': superglue.DATA_SET,
}
# Those for classifiers.
CLASS_SETS: dict[str, ClassSet] = {'superglue_pairs': superglue_pairs.CLASS_SET}
