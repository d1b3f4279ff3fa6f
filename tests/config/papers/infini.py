"""Munkhdalai et al. (2024), Infini-attention, Sec. 3.1: long-context language modelling on PG-19."""

VALUES = {
    'infini_pg19': {
        'model.num_layers': 12,
        'model.num_heads': 8,
        'model.head_dim': 128,
        'model.d_feed_forward': 4096,
        'model.infini.features': 'elu',
        'model.infini.normalizer': 'sum',
        'model.infini.rule': 'delta',
        'model.infini.rotate_memory': False,
        'model.infini.gradients': True,
        'train.segment_length': 2048,
        'train.segments_per_step': 16,  # 32,768 tokens
        'train.num_lanes': 64,
        'train.remat': True,
        'optimizer.name': 'adafactor',
        'optimizer.learning_rate': 0.01,
        'optimizer.schedule': 'cosine',
        'optimizer.warmup_steps': 1000,
    },
    'infini_pg19:rule=linear': {'model.infini.rule': 'linear'},
}
OURS = {
    'infini_pg19': {
        'model.d_model': 1024,
        'model.vocab_size': 32_128,
        'model.infini.position': 'rotary',
        'model.infini.gate_init': 0.0,
        'model.infini.gate_std': 0.0,
        'model.dropout': 0.0,
        'train.num_steps': 100_000,
        'optimizer.clip_norm': 1.0,
        'optimizer.groups': (('attention/gate$', 1.0, False, 'adam'),),
    },
    'infini_pg19:memory=transformer_xl': {'model.transformer_xl.memory_length': 2048},
}
