"""Infinity-former on WikiText-103, words (Martins et al., 2022, Sec. 4.2).

python -m longmem_jax.main --config=configs/infinity_former_wikitext103.py --config.data.path=WT103
Short-term memory 150, 150 basis functions, a first fit of 900 vectors, tau 0.5. Published
perplexity: Transformer-XL 24.52, Compressive 24.41, infinity-former 24.29, with sticky memories
24.22. `:sticky=sampled` or `:sticky=quantile`; `:memory=transformer_xl` is the baseline; `:tiny` is
for two cores.
"""

from longmem_jax.config.base import base, stack, transformer_xl
from longmem_jax.config.recipes import infinity_former
from longmem_jax.config.variants import variant
from longmem_jax.errors import UsageError, unknown
from longmem_jax.memory.infinity_former.continuous import STICKY

MEMORIES = ('infinity_former', 'transformer_xl')


def get_config(arg=''):
    config = base()

    model = config.model
    stack(model, 16, 'infinity_former')
    model.vocab_size = 267_744  # 267,735 words; rounded up so that it divides over devices
    model.d_model = model.d_embed = 410
    model.num_heads, model.head_dim = 10, 41
    model.d_feed_forward = 2100
    model.pre_norm = model.final_norm = False
    model.cutoffs = (20_000, 40_000, 200_000)
    model.tie_projections = (False, True, True, True)
    model.dropout = 0.1
    model.infinity_former = infinity_former(150, 150, memory_threshold=900, sigma_0=0.1)

    config.data.tokenizer.kind = 'words'
    config.data.pieces = 40

    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.clip_norm = 0.25

    config.train.num_steps = 250_000
    config.train.num_lanes = 40
    config.train.segment_length = 150
    config.train.loss_weights.kl = 1e-5
    config.train.log_every = 200
    config.train.evaluate_every = 4000
    config.evaluate.segment_length = 150
    config.evaluate.num_lanes = 8
    config.evaluate.max_segments = 200
    config.checkpoint.every = 4000

    def sticky(config, kind):
        if kind not in STICKY:
            raise UsageError(unknown('sticky', kind, STICKY))
        if 'infinity_former' in model:
            model.infinity_former.sticky = kind

    def memory(config, name):
        if name not in MEMORIES:
            raise UsageError(unknown('memory', name, MEMORIES))
        if name == 'transformer_xl' and 'infinity_former' in model:
            length = model.infinity_former.memory_length
            del model.infinity_former
            del config.train.loss_weights.kl
            stack(model, model.num_layers, name)
            model.transformer_xl = transformer_xl(length)

    def tiny(config):
        """3 layers of 128, some minutes on two cores."""
        model.vocab_size = 8192
        stack(model, 3, model.attention[0])
        model.d_model = model.d_embed = 128
        model.num_heads, model.head_dim = 4, 32
        model.d_feed_forward = 512
        model.cutoffs, model.div_val, model.tie_projections = (2000,), 4, (False, True)
        model.pre_norm = model.final_norm = True
        if 'infinity_former' in model:
            model.infinity_former.update(
                memory_length=64,
                write_length=64,
                num_basis=64,
                widths=(0.02, 0.05),
                num_samples=128,
                memory_threshold=256,
            )
        else:
            model.transformer_xl.memory_length = 64
        config.data.tokenizer.size = 8000
        config.data.pieces = 1
        config.optimizer.learning_rate = 2e-3
        config.optimizer.warmup_steps = 50
        config.train.num_steps = 400
        config.train.num_lanes = 8
        config.train.segment_length = 64
        config.train.log_every = 20
        config.train.evaluate_every = 200
        config.evaluate.segment_length = 64
        config.evaluate.num_lanes = 1
        config.evaluate.max_segments = 100
        config.evaluate.max_test_segments = 500
        config.checkpoint.every = 200

    return variant(config, arg, tiny=tiny, memory=memory, sticky=sticky)
