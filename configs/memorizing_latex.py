"""Memorizing Transformer on LaTeX, one document per paper (Wu et al., 2022, Sec. 4.1: arXiv Math).

python -m longmem_jax.main --config=configs/memorizing_latex.py --config.data.path=PAPERS --workdir=DIR
`PAPERS/NAME/...` (divided into splits by name) or `PAPERS/train/NAME/...`; a file next to the folders
is a document of its own. The model and the variants are those of configs/memorizing_pg19.py. `:tiny`
reads bytes, for two cores. Published: perplexity 2.37 per token (8k memories), 2.67 without.

Not the paper's: `endings`, ours; what else differs is said in configs/memorizing_pg19.py.
"""

from longmem_jax.configs import memorizing_pg19


def get_config(arg=''):
    config = memorizing_pg19.get_config(arg)
    config.data.documents = 'folder'
    config.data.endings = ('.tex',)
    return config
