"""Infinity-former on PG-19, trained from scratch: an experiment of ours.

python -m longmem_jax.main --config=configs/infinity_former_pg19.py --config.data.path=PG19 --workdir=DIR
Martins et al. (2022) fine-tune GPT-2 on PG-19 and train nothing on it from scratch. This file takes the
model and the training of configs/pg19.py, and the continuous memory of their GPT-2 experiments (512
functions of widths .005 and .01, 512 samples, tau 0.5, sigma_0 .05, KL weight 1e-6), after a short-term
memory of 512 that GPT-2 does not have. `:sticky=sampled`, `:sticky=sampled_inside` or
`:sticky=quantile` adds sticky memories; `:clear` resets the memory after 2,048 vectors, as the released
code does; `:memory=transformer_xl` is the baseline; `:tiny` reads bytes, for two cores. The gate of
what is written has twice the rate of the rest.
"""

from longmem_jax.config.base import base, read_bytes, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant
from longmem_jax.configs._pg19 import pg19

# The gate of what is written has a rate of its own.
GATE = (('attention/memory/gate_', 2.0, False),)


def get_config(arg=''):
    config = base()

    pg19(config)
    continuous = given(
        memory_length=512,
        num_basis=512,
        widths=(0.005, 0.01),
        num_samples=512,
        tau=0.5,
        sticky='none',
        groups=GATE,
    )
    memories = dict(infinity_former=continuous, transformer_xl=given(memory_length=512))

    config.optimizer.learning_rate = 1e-2

    def tiny(config):
        """3 layers of 128 on bytes, some minutes on two cores."""
        size(config, layers=3, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=600, lanes=8, segment=64)
        read_bytes(config)
        continuous.fields.update(
            memory_length=64, num_basis=64, widths=(0.02, 0.05), num_samples=128
        )
        memories['transformer_xl'].fields.update(memory_length=64)
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500

    def sticky(config, kind):
        continuous.fields.update(sticky=kind)

    def clear(config):
        """The memory threshold of the released GPT-2 code."""
        continuous.fields.update(memory_threshold=2048, threshold_kind='clear')

    return variant(
        config,
        arg,
        memory='infinity_former',
        memories=memories,
        tiny=tiny,
        sticky=sticky,
        clear=clear,
    )
