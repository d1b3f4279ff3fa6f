"""The second reading: real text followed by itself, and what a memory saves on the second copy.

python -m longmem_jax.main --config=configs/second_reading.py:tiny,memory=memorizing --workdir=DIR
`:memory=` is any memory of the library. The text is Python's standard library, or another with
`--config.data.path=FOLDER`. `:tiny` has 2 layers of 64, some minutes on two cores. This is not an
experiment of a paper; `python -m experiments.second_reading` runs it for several memories and seeds,
tests copies of 128 bytes to 64 kB, and draws the figure.

Models of this size do not begin to copy from a few million tokens of long documents. Here they begin
within some hundred steps: much of the text is in short pieces, the learning rate is high, and a step
sees whole pairs of copies, so that a memory can learn what to keep. Half of the training documents are
in a cipher, which only the first copy explains, and all attention sees the same channels of the last
four tokens (`token_shift`): both make copying better and sooner.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.variants import variant


def get_config(arg=''):
    config = base()

    size(config, layers=8, width=512, heads=8, feed_forward=2048)
    config.model.vocab_size = 8192
    config.model.dtype, config.model.token_shift = 'bfloat16', 'last_four'
    config.data.source = 'second_reading'
    config.data.tokenizer = dict(kind='bpe', path='', size=8192)
    config.data.task = dict(
        documents=10_000_000,
        eval_documents=256,
        lengths=(64, 256, 1024, 4096),
        copies=2,
        cipher=0.5,
    )
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 500
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 10_000
    config.train.num_lanes = 16
    config.train.segment_length = 256
    config.train.segments_per_step = 16  # tokens per lane: longer than most pairs of copies
    config.train.log_every = 100
    config.train.evaluate_every = 2500
    config.evaluate.num_lanes = 64
    config.generate.sample_length = 0
    scale: dict[str, Any] = dict(reach=2048, memories=16_384)

    def tiny(config):
        """2 layers of 64, segments of 32 tokens; one to four minutes on a core.

        Most of the pieces are longer than a segment, so that memories are needed from the start; one
        wide head, since a matrix of keys and values holds as many pairs as its keys are wide.
        """
        size(config, layers=2, width=64, heads=1, feed_forward=128)
        two_cores(config, steps=1500, lanes=8, segment=32)
        config.model.vocab_size = config.data.tokenizer.size = 512
        config.data.task.update(eval_documents=48, lengths=(16, 64, 256))
        config.optimizer.learning_rate = 5e-3
        config.optimizer.b2, config.optimizer.warmup_steps = 0.99, 100
        config.train.segments_per_step = 12  # 384 tokens per lane; a pair has some 300 at most
        config.train.log_every = 50
        config.train.evaluate_every = 500
        config.evaluate.num_lanes = 16
        scale.update(
            reach=512, memories=2048, basis=64, samples=32, widths=(0.02, 0.05), slots=16, keys=16
        )

    return variant(config, arg, memory='memorizing', scale=scale, tiny=tiny)
