"""GPT-2 small with a continuous memory on 2,000 books (Martins et al., 2022, Sec. 4.3, C.3).

python -m longmem_jax.main --config=configs/gpt2_pg19.py:path=GPT2 --config.data.path=PG19 --workdir=DIR
The first 2,000 books of PG-19's training set, about 200 million tokens; all else as in
`gpt2_wikitext103.py`, with the same variants. Published perplexity per token: GPT-2 33.44,
infinity-former 32.61, with sticky memories 32.48.

Not the paper's: which books are the first is not said; `first` takes them in the order of their file
names. What is ours in `gpt2_wikitext103.py` is ours here. `num_steps`: an epoch of 200 million tokens.
"""

from longmem_jax.configs import _gpt2_fine_tuning


def get_config(arg=''):
    return _gpt2_fine_tuning.language_model(arg, num_steps=390_000, first=2000)
