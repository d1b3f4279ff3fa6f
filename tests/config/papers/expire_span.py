"""Sukhbaatar et al. (2021), Expire-Span: Secs. 4, 5 and A.3, Tables 1-7, and the released scripts.

`released`: the scripts of the repository say it; the paper does not contradict them.
"""

ADAM = {
    'optimizer.name': 'adam',
    'optimizer.b1': 0.9,
    'optimizer.b2': 0.999,
    'optimizer.weight_decay': 0.0,
    'optimizer.clip_each': False,
    'optimizer.accumulate_steps': 1,
    'train.segments_per_step': 1,
}
BACKBONE = {  # of the released code: the same under every memory of the paper
    'model.position': 'none',
    'model.tie_weights': False,
    'model.attention_bias': 'none',
    'model.scale_scores': True,
}


def sizes(layers, width, heads, feed_forward):
    return {
        'model.num_layers': layers,
        'model.d_model': width,
        'model.num_heads': heads,
        'model.d_feed_forward': feed_forward,
    }


def spans(longest, ramp, loss, block, share, pre_div=1.0, shorten=False):
    """The settings of Expire-Span; positions of the nearest block only (A.1)."""
    return {
        'model.expire_span.max_span': longest,
        'model.expire_span.ramp': ramp,
        'train.loss_weights.expire_span': loss,
        'train.segment_length': block,
        'model.expire_span.position_length': block,
        'model.expire_span.initial_share': share,
        'model.expire_span.pre_div': pre_div,
        'model.expire_span.shorten': shorten,
        'model.expire_span.limit': 0,
    }


def fixed(longest):
    """The paper's own Transformer-XL: the base model with a fixed span."""
    return {
        'model.adaptive_span.per': 'none',
        'model.adaptive_span.max_span': longest,
        'train.loss_weights.adaptive_span': '(no such field)',
    }


def adaptive(longest):
    return {'model.adaptive_span.per': 'head', 'model.adaptive_span.max_span': longest}


def pooled(reach):
    """Mean pooling, without a loss; half of the reach is pooled, which is ours."""
    return {
        'model.compressive.compression': 'mean',
        'model.compressive.reading': 'sliding',
        'model.compressive.reconstruction': 'none',
        'model.compressive.memory_length': reach // 2,
        'model.compressive.compressed_length': reach // 8,
        'model.compressive.rate': 4,
    }


ADAPTIVE = {  # of Adaptive-Span's own scripts
    'model.adaptive_span.ramp': 32,
    'model.adaptive_span.initial_share': 0.0,
    'train.loss_weights.adaptive_span': 5e-7,
}
CAPACITY = {'model.expire_span.capacity': 4096}

TORCH = {  # released: PyTorch's initial values, and so N(0, 1) for the tokens
    'model.init': 'torch',
    'model.embedding_std': 1.0,
}

ENWIK8 = {
    **ADAM,
    **BACKBONE,
    **TORCH,
    **sizes(12, 512, 8, 2048),
    'model.pre_norm': False,  # released
    'model.final_norm': False,
    'model.scale_embedding': False,
    'model.dropout': 0.3,  # released: after ReLU and on attention weights only
    'model.attention_dropout': 0.3,
    'model.residual_dropout': 0.0,
    'model.embedding_dropout': 0.0,
    'model.layer_drop': 0.0,
    'optimizer.learning_rate': 7e-4,
    'optimizer.schedule': 'constant',
    'optimizer.warmup_steps': 8000,
    'optimizer.clip_norm': 0.3,
    'train.num_lanes': 512,
    'train.num_steps': 100_000,
    'train.segment_length': 512,
    'evaluate.num_lanes': 128,
}
LARGE = {
    **ENWIK8,
    **sizes(24, 768, 8, 4096),
    **spans(32_768, 128, 3e-7, 512, 0.1, pre_div=128.0, shorten=True),
    'model.dropout': 0.5,
    'model.attention_dropout': 0.5,
    'model.layer_drop': 0.2,
    'optimizer.learning_rate': 4e-4,
    'optimizer.warmup_steps': 16_000,
}
LARGE_OURS = (  # not given; as in the small model
    'model.num_heads',
    'model.expire_span.initial_share',
    'model.expire_span.shorten',
    'train.num_lanes',
    'train.segment_length',
    'optimizer.clip_norm',
    'model.pre_norm',
)
ONE_GPU = {  # released
    **ENWIK8,
    **sizes(8, 256, 4, 1024),
    **spans(4096, 64, 1e-6, 256, 0.1, pre_div=64.0),
    'model.dropout': 0.0,
    'model.attention_dropout': 0.0,
    'optimizer.learning_rate': 3e-4,
    'train.num_lanes': 64,
}
PG19 = {
    **BACKBONE,
    **sizes(12, 512, 8, 2048),
    'data.tokenizer.size': 3506,
    'model.init': 'glorot_uniform',
    'model.scale_embedding': False,
    'model.dropout': 0.2,
    'model.attention_dropout': 0.2,
    'optimizer.schedule': 'cosine',
    'optimizer.warmup_steps': 8000,
    'optimizer.clip_norm': 0.3,
    'train.segment_length': 512,
}
PG19_SPANS = {
    'model.expire_span.max_span': 8192,
    'model.expire_span.ramp': 128,
    'train.loss_weights.expire_span': 1e-6,
}
PG19_OURS = {
    'optimizer.learning_rate': 7e-4,
    'train.num_lanes': 512,
    'train.num_steps': 100_000,
    'model.pre_norm': False,
    'model.embedding_std': 1.0,
}
WIKITEXT103 = {
    **ADAM,
    'model.num_layers': 8,
    'model.d_model': 1024,
    'model.d_feed_forward': 4096,
    'model.dropout': 0.3,
    'model.attention_dropout': 0.3,
    'model.residual_dropout': 0.0,
    'model.embedding_dropout': 0.2,
    'model.pre_norm': False,
    'optimizer.learning_rate': 7e-4,
    'optimizer.schedule': 'constant',
    'optimizer.warmup_steps': 8000,
    'optimizer.clip_norm': 0.1,
    'train.num_lanes': 512,
    'train.num_steps': 300_000,
    'train.segment_length': 256,
}
WIKITEXT103_OURS = {
    'model.num_heads': 8,
    'model.cutoffs': (20_000, 40_000, 200_000),
    'model.div_val': 4,
    'model.scale_embedding': True,
    'model.init': 'normal',
    'model.init_std': 0.0,
}
COLLISION = {  # released
    **ADAM,
    **BACKBONE,
    **TORCH,
    'model.scale_residual_init': True,
    **sizes(6, 512, 4, 1024),
    'model.pre_norm': True,
    'model.final_norm': True,
    'model.scale_embedding': False,
    'model.dropout': 0.1,
    'model.attention_dropout': 0.1,
    'model.residual_dropout': 0.0,
    'model.embedding_dropout': 0.0,
    'optimizer.learning_rate': 1e-4,
    'optimizer.schedule': 'constant',
    'optimizer.warmup_steps': 1000,
    'optimizer.clip_norm': 0.1,
    'train.num_lanes': 512,
    'evaluate.num_lanes': 64,
    'train.num_steps': 100_000,
    'train.segment_length': 256,
}
INSTRUCTION = {
    'optimizer.name': 'adam',
    'model.num_layers': 6,
    'model.d_model': 512,
    'model.num_heads': 8,
    'optimizer.learning_rate': 7e-4,
    'optimizer.warmup_steps': 8000,
}
INSTRUCTION_SPANS = {
    'model.expire_span.ramp': 64,
    'train.loss_weights.expire_span': 2e-6,
}
INSTRUCTION_OURS = {
    'model.d_feed_forward': 2048,
    'model.attention_dropout': 0.1,
    'model.pre_norm': True,
    'optimizer.clip_norm': 0.3,
    'train.num_lanes': 256,
    'train.segment_length': 256,
    'train.num_steps': 100_000,
}


def without(values, names):
    return {path: value for path, value in values.items() if path not in names}


VALUES = {
    'expire_span_enwik8': {
        **ENWIK8,
        **spans(16_384, 128, 1e-6, 512, 0.1, shorten=True),
        'parameters': (37.5e6, 38.5e6),
    },
    'expire_span_enwik8:large': {
        **without(LARGE, LARGE_OURS),
        'parameters': (207.5e6, 208.5e6),
    },
    'expire_span_enwik8:one_gpu': ONE_GPU,
    'expire_span_enwik8:memory=transformer_xl': {
        **ENWIK8,
        'model.adaptive_span.per': 'none',
        'parameters': (37.5e6, 38.5e6),
    },
    'expire_span_enwik8:memory=adaptive_span': {
        **ENWIK8,
        **adaptive(16_384),
        'parameters': (38.5e6, 39.5e6),
    },
    'expire_span_enwik8:memory=compressive': ENWIK8,
    'expire_span_pg19': {**PG19, **PG19_SPANS},
    'expire_span_pg19:span=16384': {
        **PG19,
        **PG19_SPANS,
        'model.expire_span.max_span': 16_384,
        'train.loss_weights.expire_span': 3e-7,
    },
    'expire_span_pg19:memory=transformer_xl': {**PG19, **fixed(2048)},
    'expire_span_pg19:memory=adaptive_span': {**PG19, **adaptive(16_384)},
    'expire_span_pg19:memory=compressive': PG19,
    'expire_span_wikitext103': {
        **WIKITEXT103,
        **without(
            spans(8192, 128, 1e-6, 256, 0.1, shorten=True), ('model.expire_span.initial_share',)
        ),
        'parameters': (135e6, 145e6),
    },
    'copy': {'model.expire_span.max_span': 16_384},
    'copy:span=131072': {'model.expire_span.max_span': 131_072},
    'copy:memory=transformer_xl': fixed(2048),
    'collision': {**COLLISION, **spans(16_384, 128, 2e-6, 256, 0.01)},
    'collision:span=32768': {**COLLISION, **spans(32_768, 128, 2e-6, 256, 0.01)},
    'collision:span=65536': {**COLLISION, **spans(65_536, 128, 2e-6, 256, 0.01, shorten=True)},
    'collision:memory=transformer_xl': {**COLLISION, **fixed(1024)},
    'collision:memory=adaptive_span': {**COLLISION, **adaptive(16_384)},
    'instruction': {**INSTRUCTION, **INSTRUCTION_SPANS},
}
OURS = {
    'expire_span_enwik8': CAPACITY,
    'expire_span_enwik8:large': {path: LARGE[path] for path in LARGE_OURS} | CAPACITY,
    'expire_span_enwik8:memory=transformer_xl': {'model.adaptive_span.max_span': 2048},
    'expire_span_enwik8:memory=adaptive_span': ADAPTIVE,
    'expire_span_enwik8:memory=compressive': {
        path: value for path, value in pooled(8192).items() if not isinstance(value, str)
    },
    'expire_span_pg19': {
        **PG19_OURS,
        **CAPACITY,
        'model.expire_span.initial_share': 0.1,
        'model.expire_span.pre_div': 1.0,
        'model.expire_span.shorten': False,
    },
    'expire_span_pg19:memory=adaptive_span': ADAPTIVE,
    'expire_span_pg19:memory=compressive': {
        path: value for path, value in pooled(16_384).items() if not isinstance(value, str)
    },
    'expire_span_wikitext103': {
        **WIKITEXT103_OURS,
        **CAPACITY,
        'model.expire_span.initial_share': 0.1,
    },
    'expire_span_wikitext103:memory=transformer_xl': {'model.adaptive_span.max_span': 2048},
    'expire_span_wikitext103:memory=adaptive_span': ADAPTIVE,
    'expire_span_wikitext103:memory=compressive': {
        'model.compressive.memory_length': 2048,
        'model.compressive.compressed_length': 512,
    },
    'copy': {
        **sizes(6, 512, 4, 1024),
        **CAPACITY,
        'model.attention_dropout': 0.1,
        'model.pre_norm': True,
        'model.expire_span.ramp': 128,
        'model.expire_span.initial_share': 0.01,
        'train.loss_weights.expire_span': 2e-6,
        'optimizer.learning_rate': 1e-4,
        'optimizer.warmup_steps': 1000,
        'optimizer.clip_norm': 0.1,
        'train.num_lanes': 512,
        'train.segment_length': 256,
        'train.num_steps': 100_000,
        'data.task.max_count': 4,
    },
    'collision': CAPACITY,
    'collision:easy,span=1024': {'model.expire_span.initial_share': 0.75},
    'collision:memory=adaptive_span': ADAPTIVE,
    'collision:memory=compressive': {
        path: value for path, value in pooled(8192).items() if not isinstance(value, str)
    },
    'instruction': {
        **INSTRUCTION_OURS,
        **CAPACITY,
        'model.expire_span.max_span': 16_384,
        'model.expire_span.initial_share': 0.1,
    },
    'instruction:memory=transformer_xl': {'model.adaptive_span.max_span': 2048},
    'instruction:memory=adaptive_span': ADAPTIVE,
}
