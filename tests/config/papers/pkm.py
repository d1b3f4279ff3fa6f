"""Lample et al. (2019), product-key memories, Sec. 4, and the released XLM code."""

MODEL = {
    'model.d_model': 1024,
    'model.num_heads': 16,
    'model.head_dim': 64,
    'model.d_feed_forward': 4096,
    'model.position': 'learned',
    'model.pre_norm': False,
    'model.final_norm': False,
    'model.dense.activation': 'gelu',
    'data.tokenizer.kind': 'bpe',
    'data.tokenizer.size': 60_000,
}
MEMORY = {
    'model.product_key.num_keys': 512,
    'model.product_key.num_heads': 4,
    'model.product_key.top_k': 32,
    'model.product_key.query_dim': 512,
    'model.product_key.query_norm': 'batch',
    'model.product_key.keys': 'product',
}


def layers(number, *with_memory):
    return tuple('product_key' if i + 1 in with_memory else 'dense' for i in range(number))


VALUES = {
    'pkm_lm': MODEL | MEMORY | {'model.feed_forward': layers(16, 6, 12)},
    'pkm_lm:layers=24,plain': MODEL | {'model.feed_forward': layers(24), 'optimizer.groups': ()},
    'pkm_lm:width=1600': MEMORY
    | {'model.d_model': 1600, 'model.num_heads': 16, 'model.feed_forward': layers(16, 6, 12)},
}
OURS = {
    'pkm_lm': {
        'model.vocab_size': 60_032,
        'model.dropout': 0.1,
        'model.dtype': 'bfloat16',
        'optimizer.learning_rate': 2.5e-4,
        'optimizer.groups': (('feed_forward/values$', 4.0, False),),
        'optimizer.schedule': 'inverse_sqrt',
        'optimizer.warmup_steps': 10_000,
        'optimizer.clip_norm': 1.0,
        'train.num_steps': 300_000,
        'train.num_lanes': 128,
        'train.segment_length': 256,
    },
}
