r"""GPT-2 small with a continuous memory on WikiText-103 (Martins et al., 2022, Sec. 4.3, C.3).

python -m longmem_jax.main --config=configs/gpt2_wikitext103.py:path=GPT2 --config.data.path=WT103 \
    --workdir=DIR
GPT2 is the folder of GPT-2 small, or `gpt2` to fetch it from the hub. Segments of 512, a memory of 512
basis functions that is cleared after 2,048 tokens, one epoch. Published perplexity per token: GPT-2
16.85, infinity-former 16.64, with sticky memories 16.61. `:memory=local` is GPT-2, `:sticky=sampled`
adds sticky memories, `:memory=compressive` is a compressive memory of 512 slots at rate 4 (`:rate=3`);
any other memory that is a layer can be named. `:tiny` is for two cores: of the `path` of a small host,
or without it of a model that has learned nothing.

Not the paper's: it gives neither `num_samples`, `ridge`, `sigma_sq_min`, `threshold_kind`,
`normalize_written`, `schedule`, `clip_norm`, `weight_decay`, `init_std` nor `dropout`; these are the
released code's, whose optimizer `name` is AdamW without decay. The released code reads the articles in
their order and carries the memory over their borders; here they are shuffled and every article begins
with an empty one. `num_steps`: an epoch of about 118 million tokens. `kl`: the divergence of Eq. 20,
without the mean term that the released settings add. `biases`: Eqs. 9 and 10 have none, as in that
code, though the paper calls them affine. `padding`: the signal is pulled to zero outside of [0, 1], as
in that code and in no equation. `num_bins` of sticky memories, 128, is ours. `memory_length`: hidden
vectors that wait to be compressed, a segment, are not named; nor is `compression`. Positions of
compressed vectors: `position`, a bias like ALiBi's, and a learned one per head with which they begin
almost closed. `mesh`: all devices do the same work, as a batch is a single segment.
"""

from longmem_jax.configs import _gpt2_fine_tuning


def get_config(arg=''):
    return _gpt2_fine_tuning.language_model(arg, num_steps=230_000, documents='wiki')
