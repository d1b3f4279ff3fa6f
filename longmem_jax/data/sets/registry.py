"""The data sets, read from their original files, that `config.data.source` may name."""

from longmem_jax.data.sets import cmu_dog, passkey, superglue
from longmem_jax.data.sets.pieces import DataSet

DATA_SETS: dict[str, DataSet] = {
    'cmu_dog': cmu_dog.DATA_SET,
    'passkey': passkey.DATA_SET,
    'superglue': superglue.DATA_SET,
}
