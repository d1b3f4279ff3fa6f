"""Yang et al. (2024), DeltaNet and Gated DeltaNet: 340M parameters, by the released training recipe."""

SIZES = {
    'model.num_layers': 24,
    'model.d_model': 1024,
    'model.vocab_size': 32_000,
    'model.norm': 'rmsnorm',
    'model.pre_norm': True,
    'model.dense.activation': 'swiglu',
    'model.tie_weights': False,
    'optimizer.name': 'adamw',
    'optimizer.learning_rate': 3e-4,
    'optimizer.schedule': 'cosine',
    'optimizer.final_fraction': 0.1,
    'optimizer.warmup_steps': 1024,
    'optimizer.clip_norm': 1.0,
    'train.num_steps': 30_720,
    'train.num_lanes': 256,
    'train.segment_length': 2048,
}
VALUES = {
    # The released model of this name has 24 layers of 8 heads; "340M" leaves tables of words aside.
    'slimpajama_340m:memory=delta_net': SIZES
    | {
        'model.delta.gate': 'none',
        'model.delta.convolution': 4,
        'model.norm_epsilon': 1e-6,
        'model.num_heads': 8,
        'parameters': (370e6, 380e6),
    },
    'slimpajama_340m': SIZES | {'model.delta.gate': 'head', 'model.delta.output_gate': 'silu'},
    'slimpajama_340m:memory=3*gated_delta_net+full': SIZES
    | {'model.attention': (('delta',) * 3 + ('full',)) * 6},
}
OURS = {
    'slimpajama_340m': {
        'data.tokenizer.kind': 'bpe',
        'model.num_heads': 8,
        'model.d_feed_forward': 2816,
        'optimizer.b2': 0.95,
        'optimizer.weight_decay': 0.01,
    },
}
