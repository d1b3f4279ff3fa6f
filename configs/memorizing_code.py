"""Memorizing Transformer on source code, a document per repository (Wu et al., 2022, Sec. 4.1: GitHub).

python -m longmem_jax.main --config=configs/memorizing_code.py --config.data.path=REPOS --workdir=DIR
`REPOS/NAME/...` (divided into splits by name) or `REPOS/train/NAME/...`; files with the endings
`config.data.endings` are read one after another. The model and the variants are those of
configs/memorizing_pg19.py. `:tiny` reads bytes, for two cores. Published: perplexity 2.03 per token (8k
memories), 2.26 without.

Not the paper's: `endings`, ours for its six languages, C, C++, Java, Python, Go and TypeScript; what
else differs is said in configs/memorizing_pg19.py.
"""

from longmem_jax.configs import memorizing_pg19


def get_config(arg=''):
    config = memorizing_pg19.get_config(arg)
    config.data.documents = 'folder'
    config.data.endings = (
        '.c', '.h', '.cc', '.cpp', '.cxx', '.hpp', '.java', '.py', '.go', '.ts', '.tsx',
    )  # fmt: skip
    return config
