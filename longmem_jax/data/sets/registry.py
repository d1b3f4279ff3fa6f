"""The data sets, read from their original files, that `config.data.source` may name."""

from longmem_jax.data.sets import cmu_dog, passkey, superglue, superglue_pairs
from longmem_jax.data.sets.classes import ClassSet
from longmem_jax.data.sets.pieces import DataSet

DATA_SETS: dict[str, DataSet] = {
    'cmu_dog': cmu_dog.DATA_SET,
    'passkey': passkey.DATA_SET,
    'superglue': superglue.DATA_SET,
}
# Those for classifiers.
CLASS_SETS: dict[str, ClassSet] = {'superglue_pairs': superglue_pairs.CLASS_SET}
