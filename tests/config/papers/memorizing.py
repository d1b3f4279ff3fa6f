"""Wu et al. (2022), Memorizing Transformers, Sec. 4, and the authors' released code.

configs/pg19.py is the baseline of the same size; its positions and norms are Transformer-XL's.
"""

SIZES = {
    'model.num_layers': 12,
    'model.d_model': 1024,
    'model.num_heads': 8,
    'model.head_dim': 128,
    'model.d_feed_forward': 4096,
    'model.dropout': 0.05,
    'model.tie_weights': True,
    'model.final_norm': True,
    'data.tokenizer.size': 32_000,
    'optimizer.name': 'adafactor',
    'optimizer.learning_rate': 1000**-0.5,
    'optimizer.schedule': 'inverse_sqrt',
    'optimizer.warmup_steps': 1000,
    'train.num_steps': 500_000,
    'train.num_lanes': 2**17 // 512,
    'train.segment_length': 512,
}
MODEL = SIZES | {
    'model.norm': 'rmsnorm',
    'model.dense.bias': False,
    'model.attention_bias': 'none',
    'model.dtype': 'bfloat16',
}
ATTENTION = ('normalized_xl',) * 8 + ('memorizing',) + ('normalized_xl',) * 3
MEMORY = MODEL | {
    'model.attention': ATTENTION,
    'model.memorizing.memory_length': 512,
    'model.memorizing.memory_size': 8192,
    'model.memorizing.top_k': 32,
    'model.memorizing.position': 't5',
    'model.memorizing.scale_init': 1.0,
    'model.memorizing.gate_init': 0.0,
    'model.memorizing.cache_dtype': 'bfloat16',
    'model.normalized_xl.memory_length': 512,
    'model.normalized_xl.scale_init': 1.0,
}
LONG = {
    'train.segment_length': 2048,
    'train.num_lanes': 2**17 // 2048,
    'model.normalized_xl.memory_length': 2048,
}
VALUES = {
    'pg19': SIZES | {'model.transformer_xl.memory_length': 512},
    'pg19:segment=2048': SIZES
    | {
        'train.segment_length': 2048,
        'train.num_lanes': 64,
        'model.transformer_xl.memory_length': 2048,
    },
    'memorizing_pg19': MEMORY,
    'memorizing_pg19:size=65536': MEMORY | {'model.memorizing.memory_size': 65_536},
    'memorizing_pg19:size=0': MODEL | {'model.normalized_xl.memory_length': 512},
    'memorizing_pg19:size=0,no_cache': MODEL | {'model.normalized_xl.memory_length': 0},
    'memorizing_pg19:size=1536,no_cache': MEMORY
    | {
        'model.memorizing.memory_size': 1536,
        'model.memorizing.memory_length': 0,
        'model.normalized_xl.memory_length': 0,
    },
    'memorizing_pg19:segment=2048': MEMORY | LONG | {'model.memorizing.memory_length': 2048},
    'memorizing_pg19:segment=2048,size=0': MODEL | LONG,
    'memorizing_pg19:layer=3': MEMORY
    | {'model.attention': ('normalized_xl',) * 2 + ('memorizing',) + ('normalized_xl',) * 9},
    'memorizing_pg19:k=128': MEMORY | {'model.memorizing.top_k': 128},
    # "finetuned with the larger memory for an additional 20K steps"
    'memorizing_pg19:size=262144,from=DIR': {
        'model.memorizing.memory_size': 262_144,
        'train.num_steps': 20_000,
        'train.start_from': 'DIR',
    },
    'memorizing_code': MEMORY | {'data.documents': 'folder'},
    'memorizing_latex': MEMORY | {'data.documents': 'folder'},
}
TOKENS = {
    'data.tokenizer.kind': 'bpe',
    'model.vocab_size': 32_128,
    'optimizer.clip_norm': 1.0,
}
OURS = {
    'pg19': TOKENS | {'model.norm': 'layernorm', 'model.transformer_xl.position': 'transformer_xl'},
    'memorizing_pg19': TOKENS
    | {
        'optimizer.groups': (('attention/gate$', 0.3, False, 'adam'),),
        'model.init_std': 0.0,
        'model.scale_embedding': True,
    },
    'memorizing_pg19:size=262144,from=DIR': {'optimizer.schedule': 'constant'},
    'memorizing_code': {
        'data.endings': (
            '.c', '.h', '.cc', '.cpp', '.cxx', '.hpp', '.java', '.py', '.go', '.ts', '.tsx',
        ),
    },
    'memorizing_latex': {'data.endings': ('.tex',)},
}  # fmt: skip
