"""Memorizing Transformer on source code, one document per repository (Wu et al., 2022, Sec. 4.1).

python -m longmem_jax.main --config=configs/memorizing_code.py --config.data.path=REPOS --workdir=DIR
`REPOS/NAME/...` (divided into splits by name) or `REPOS/train/NAME/...`; files with the endings
`config.data.endings` (.py) are read one after another. The model and the variants are those of
configs/memorizing_pg19.py. `:tiny` reads bytes, for two cores.
"""

from configs import memorizing_pg19


def get_config(arg=''):
    config = memorizing_pg19.get_config(arg)
    config.data.documents = 'folder'
    config.data.endings = ('.py',)
    return config
