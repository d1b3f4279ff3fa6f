"""What the models on PG-19 of 12 layers of 1,024 share (Wu et al., 2022, Sec. 4.2)."""

from longmem_jax.config.base import size


def pg19(config):
    """Sets sizes, tokenizer, optimizer and lengths of training."""
    size(config, layers=12, width=1024, heads=8, feed_forward=4096)  # 184 M parameters
    config.model.vocab_size = 32_128
    config.model.dropout = 0.05
    config.model.dtype = 'bfloat16'
    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_000
    config.optimizer.name = 'adafactor'
    config.optimizer.learning_rate = 1000**-0.5  # 1 / sqrt(step) after the warm-up: at most 0.0316
    config.optimizer.schedule = 'inverse_sqrt'
    config.optimizer.warmup_steps = 1000
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 500_000
    config.train.num_lanes = 256  # x 512 = 2^17 tokens
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 5000
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64
