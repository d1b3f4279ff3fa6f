"""Sukhbaatar et al. (2019), Adaptive-Span: the released scripts."""

VALUES = {
    'adaptive_span_enwik8': {
        'model.num_layers': 12,
        'model.d_model': 512,
        'model.d_feed_forward': 2048,
        'model.dropout': 0.3,
        'model.attention_dropout': 0.3,
        'model.pre_norm': False,
        'model.init': 'torch',
        'model.embedding_std': 1.0,
        'model.adaptive_span.max_span': 8192,
        'model.adaptive_span.ramp': 32,
        'model.adaptive_span.per': 'head',
        'model.adaptive_span.initial_share': 0.0,
        'train.loss_weights.adaptive_span': 5e-7,
        'optimizer.name': 'adagrad',
        'optimizer.learning_rate': 0.07,
        'optimizer.clip_norm': 0.03,
        'optimizer.clip_each': True,
        'optimizer.schedule': 'constant',
        'optimizer.warmup_steps': 32_000,
        'train.num_steps': 600_000,
        'train.num_lanes': 64,
        'train.segment_length': 512,
        'parameters': (38e6, 39.5e6),
    },
    'adaptive_span_enwik8:large': {
        'model.num_layers': 24,
        'model.d_model': 768,
        'model.d_feed_forward': 4096,
        'model.dropout': 0.4,
        'model.attention_dropout': 0.4,
        'train.num_steps': 150_000,
    },
}
OURS = {
    'adaptive_span_enwik8': {'model.adaptive_span.trim_memory': False, 'model.num_heads': 8},
}
