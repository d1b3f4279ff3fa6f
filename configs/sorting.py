"""Sorting by frequency, 4,000 tokens (Martins et al., 2022, Sec. 4.1).

python -m longmem_jax.main --config=configs/sorting.py --workdir=DIR
3 layers of 300. `:length=8000` and `:length=16000` are the paper's longer sequences.
`:sticky=sampled` or `:sticky=quantile` adds sticky memories, which the paper's sorting has not. The
memories of the paper's Figure 3: `:memory=transformer_xl` (2,048), `:memory=compressive` (1,024 +
1,024), `:memory=infinity_former` (1,024 + continuous). `:tiny` counts 1,000 tokens of 6 kinds,
for two cores. The data is generated.
"""

from longmem_jax.config import recipes as baselines
from longmem_jax.config.base import base, stack, transformer_xl
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.errors import UsageError, unknown
from longmem_jax.memory.infinity_former.continuous import STICKY

MEMORIES = ('infinity_former', 'transformer_xl', 'compressive')


def get_config(arg=''):
    config = base()
    model = config.model
    model.vocab_size = 24  # 22 words
    model.num_layers = 3
    model.d_model = model.d_embed = 300
    model.num_heads, model.head_dim = 6, 50
    model.d_feed_forward = 300
    model.pre_norm = model.final_norm = False
    model.tie_weights = False
    model.dropout = 0.1
    sizes = dict(short=1024, xl=2048, block=1024, samples=512, basis=1024, widths=(0.01, 0.05))
    chosen = dict(memory='infinity_former', sticky='none')

    config.data.source = 'sorting'
    config.data.task = dict(documents=8000, eval_documents=800, length=4000, num_tokens=20)

    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'cosine'

    config.train.num_steps = 20_000  # of 8 sequences each: 20 epochs
    config.train.num_lanes = 8
    config.train.segment_length = 1024
    config.train.segments_per_step = 4  # a whole sequence
    config.train.remat = True
    config.train.log_every = 50
    config.train.evaluate_every = 600
    config.evaluate.segment_length = 1024
    config.evaluate.num_lanes = 8
    config.generate.sample_length = 0
    config.checkpoint.every = 600

    def change(**changes):
        """Puts the memory that is chosen into every layer."""
        chosen.update(changes)
        name = chosen['memory']
        for other in MEMORIES:
            if other in model:
                del model[other]
        stack(model, model.num_layers, name)
        weights = config.train.loss_weights
        for other in list(weights):
            del weights[other]
        if name == 'transformer_xl':
            model[name] = transformer_xl(sizes['xl'])
        elif name == 'compressive':
            rate = max(2, -(-(config.data.task.length - sizes['short']) // sizes['short']))
            while sizes['block'] % rate:
                rate += 1
            model[name] = baselines.compressive(sizes['short'], sizes['short'], rate)
            weights.compression = 1.0
        else:
            model[name] = baselines.infinity_former(
                sizes['short'],
                sizes['block'],
                num_basis=sizes['basis'],
                widths=sizes['widths'],
                num_samples=sizes['samples'],
                tau=0.75,
                ridge=1.0,
                sigma_sq_min=1e-6,
                sticky=chosen['sticky'],
            )
            weights.kl = 1e-5

    def memory(config, name):
        if name not in MEMORIES:
            raise UsageError(unknown('memory', name, MEMORIES))
        change(memory=name)

    def sticky(config, kind):
        if kind not in STICKY:
            raise UsageError(unknown('sticky', kind, STICKY))
        change(sticky=kind)

    def length(config, value):
        tokens = whole_number('length', value)
        config.data.task.length = tokens
        config.train.segments_per_step = -(-(tokens + 21) // config.train.segment_length)
        if tokens >= 16_000:
            config.optimizer.learning_rate = 2e-4
        change()

    def tiny(config):
        """2 layers of 32 and 6 kinds of tokens, some minutes on two cores."""
        model.num_layers = 2
        model.d_model = model.d_embed = 32
        model.num_heads, model.head_dim = 2, 16
        model.d_feed_forward = 64
        model.pre_norm = model.final_norm = True
        model.dropout = 0.0
        config.data.task.documents, config.data.task.eval_documents = 8000, 256
        config.data.task.length, config.data.task.num_tokens = 1000, 6
        config.optimizer.learning_rate = 1e-2
        config.optimizer.warmup_steps = 50
        config.train.num_steps = 400
        config.train.num_lanes = 16
        config.train.segment_length = config.evaluate.segment_length = 128
        config.train.segments_per_step = 8
        config.train.remat = False
        config.train.evaluate_every = 100
        config.evaluate.num_lanes = 16
        config.checkpoint.every = 200
        sizes.update(short=128, xl=256, block=128, samples=128, basis=128, widths=(0.02, 0.05))
        change()

    change()
    return variant(config, arg, tiny=tiny, memory=memory, sticky=sticky, length=length)
