"""Recall at a chosen distance: passkey, needles, associative recall, copy.

python -m longmem_jax.main --config=configs/recall.py:kind=needles,memory=infini --workdir=DIR
then the same with `--mode=evaluate`: accuracy by distance as a table, `recall.json` and `recall.png`;
other distances with `--config.data.task.distances='(4096, 1000000)'`. `:memory=` is one of local,
transformer_xl, adaptive_span, compressive, expire_span, infinity_former, infini, memorizing;
`:tiny` has distances of 16 to 256, for two cores. No published numbers: the papers test large
models. The data is generated.
"""

from longmem_jax import baselines
from longmem_jax.config import base, stack, transformer_xl
from longmem_jax.data.tasks.recall import KINDS
from longmem_jax.errors import UsageError, unknown
from longmem_jax.variants import variant

MEMORIES = (
    'infini', 'memorizing', 'local', 'transformer_xl', 'adaptive_span', 'compressive',
    'expire_span', 'infinity_former',
)  # fmt: skip


def get_config(arg=''):
    config = base()

    model = config.model
    del model.transformer_xl
    model.vocab_size = 128
    model.num_layers = 6
    model.d_model = model.d_embed = 512
    model.num_heads, model.head_dim = 8, 64
    model.d_feed_forward = 2048
    model.dtype = 'bfloat16'
    config.data.source = 'recall'
    config.data.task = dict(
        kind='passkey',
        documents=1_000_000,
        eval_documents=256,
        distances=(256, 1024, 4096, 16_384, 65_536),
        num_pairs=8,
        answer_length=5,
        num_fillers=64,
        before=256,
    )
    config.optimizer.learning_rate = 5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 50_000
    config.train.num_lanes = 64
    config.train.segment_length = 256
    config.train.segments_per_step = 4
    config.train.remat = True
    config.train.log_every = 100
    config.train.evaluate_every = 2500
    config.evaluate.segment_length = 256
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64
    config.generate.sample_length = 0
    config.checkpoint.every = 2500
    sizes = dict(
        block=256, reach=2048, memories=65_536, basis=512, samples=512, widths=(0.01, 0.05)
    )
    chosen = dict(memory='infini')

    def change(**changes):
        """Puts the memory that is chosen into every layer (`memorizing` into the last but one)."""
        chosen.update(changes)
        name, block, reach = chosen['memory'], sizes['block'], sizes['reach']
        for other in (*MEMORIES, 'normalized_xl'):
            if other in model:
                del model[other]
        weights = config.train.loss_weights
        for other in list(weights):
            del weights[other]
        config.optimizer.groups = ()
        if name == 'memorizing':
            baselines.with_memory(
                model, max(model.num_layers - 1, 1), block, sizes['memories'], scale_init=8.0
            )
            return
        stack(model, model.num_layers, name)
        model[name] = {
            'local': lambda: dict(position='rotary'),
            'transformer_xl': lambda: transformer_xl(reach),
            'adaptive_span': lambda: baselines.adaptive_span(reach, block // 4),
            'compressive': lambda: baselines.compressive(reach // 2, reach // 2, 4),
            'expire_span': lambda: baselines.expire_span(reach, block // 4, block),
            'infinity_former': lambda: baselines.infinity_former(
                block, block, num_basis=sizes['basis'], widths=sizes['widths'],
                num_samples=sizes['samples'], sticky='quantile',
            ),
            'infini': lambda: baselines.infini(),
        }[name]()  # fmt: skip
        if name in ('adaptive_span', 'expire_span'):
            weights[name] = 1e-6
        if name == 'compressive':
            weights.compression = 1.0
        if name == 'infinity_former':
            weights.kl = 1e-6
        if name == 'infini':
            config.optimizer.groups = (('attention/gate$', 5.0, False),)

    def memory(config, name):
        if name not in MEMORIES:
            raise UsageError(unknown('memory', name, MEMORIES))
        change(memory=name)

    def kind(config, name):
        if name not in KINDS:
            raise UsageError(unknown('kind', name, KINDS))
        config.data.task.kind = name

    def tiny(config):
        """2 layers of 64, some minutes on two cores."""
        model.num_layers = 2
        model.vocab_size = 32
        model.d_model = model.d_embed = 64
        model.num_heads, model.head_dim = 2, 32
        model.d_feed_forward = 128
        model.dtype = 'float32'
        config.data.task.update(
            eval_documents=64,
            distances=(16, 64, 256),
            num_pairs=4,
            answer_length=1,
            num_fillers=8,
            before=32,
        )
        config.optimizer.learning_rate = 3e-3
        config.optimizer.warmup_steps = 50
        config.train.num_steps = 500
        config.train.num_lanes = 16
        config.train.segment_length = 32
        config.train.remat = False
        config.train.log_every = 50
        config.train.evaluate_every = 250
        config.evaluate.segment_length = 32
        config.evaluate.num_lanes = 16
        config.evaluate.max_segments = 0
        config.checkpoint.every = 250
        sizes.update(block=32, reach=128, memories=2048, basis=64, samples=64, widths=(0.02, 0.05))
        change()

    change()
    return variant(config, arg, tiny=tiny, memory=memory, kind=kind)
