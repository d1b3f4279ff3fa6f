"""Wu et al. (2020), Memformer, as the survey reports it."""

SIZES = {
    'model.d_model': 512,
    'model.d_feed_forward': 2048,
    'model.num_heads': 8,
    'model.head_dim': 64,
    'train.segment_length': 128,
}
VALUES = {
    'memformer_wikitext103': SIZES
    | {
        'model.num_layers': 16,
        'model.memformer.num_encoder_layers': 4,
        'model.memformer.num_slots': 1024,
        'model.memformer.encoder': 'slot_attention',
        'model.memformer.forgets': True,
        'model.memformer.slot_heads': 0,
        'train.remat': True,
    },
    'memformer_wikitext103:decoder=12': {'model.num_layers': 12},
    'memformer_wikitext103:slots=512': {'model.memformer.num_slots': 512},
    'memformer_wikitext103:slots=0': {'model.memformer.num_slots': 0},
    'memformer_wikitext103:no_temperature': {'model.memformer.temperature': 1.0},
    'memformer_wikitext103:no_forgetting': {'model.memformer.forgets': False},
    'memformer_wikitext103:one_head': {'model.memformer.slot_heads': 1},
    'memformer_wikitext103:raw_slots': {
        'model.memformer.normalized': False,
        'model.memformer.bias_std': 512**-0.5,
    },
    'memformer_wikitext103:joint': {'model.memformer.bias_std': 0.01},  # MemBART, base
    'memformer_wikitext103:memory=transformer_xl': SIZES
    | {'model.num_layers': 16, 'model.transformer_xl.memory_length': 1024},
    'memformer_wikitext103:memory=transformer_xl,length=1600': {
        'model.transformer_xl.memory_length': 1600
    },
    'memformer_wikitext103:memory=compressive': SIZES
    | {
        'model.num_layers': 16,
        'model.compressive.memory_length': 512,
        'model.compressive.compressed_length': 512,
        'model.compressive.rate': 4,
    },
}
OURS = {
    'memformer_wikitext103': {
        'model.local.position': 'rotary',
        'model.memformer.temperature': 0.25,
        'model.memformer.num_summaries': 8,
        'model.memformer.normalized': True,
        'model.memformer.bias_std': 0.05 * 512**-0.5,
        'model.vocab_size': 32_000,
        'model.dropout': 0.1,
        'optimizer.name': 'adamw',
        'optimizer.weight_decay': 0.01,
        'optimizer.learning_rate': 2.5e-4,
        'optimizer.warmup_steps': 2000,
        'optimizer.clip_norm': 1.0,
        'train.num_steps': 150_000,
        'train.num_lanes': 64,
        'train.segments_per_step': 8,
    },
}
