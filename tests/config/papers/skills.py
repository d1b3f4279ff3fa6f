"""Poli et al. (2024), MAD, and Merrill et al. (2024), state tracking: by their released configs."""

_MAD = {
    'data.task.documents': 12_800,
    'data.task.eval_documents': 1280,
    'data.task.num_words': 16,
    'data.task.length': 128,
    'data.task.train_on_text': True,
    'model.num_layers': 2,  # each a mixer of tokens and one of channels
    'model.d_model': 128,
    'optimizer.name': 'adamw',
    'optimizer.learning_rate': 5e-4,
    'optimizer.schedule': 'cosine',
    'optimizer.final_fraction': 2e-3,
    'train.num_lanes': 128,
    'train.num_steps': 20_000,  # 200 epochs
}
VALUES = {
    'mad': _MAD,
    'mad:task=noisy': _MAD
    | {'data.task.num_words': 32, 'data.task.num_noise': 16, 'data.task.noise': 0.2},
    'mad:task=fuzzy': _MAD | {'data.task.key_length': 3, 'data.task.value_length': 3},
    'mad:task=compression': _MAD | {'data.task.length': 32},
    'mad:task=memorization': _MAD
    | {
        'data.task.num_words': 256,
        'data.task.length': 32,
        'data.task.documents': 256,
        'train.num_steps': 400,
    },
    'mad:task=copying': _MAD | {'data.task.length': 256, 'data.task.num_copied': 16},
    'state_tracking': {
        'data.task.group': 'S5',
        'data.task.documents': 1_000_000,
        'model.d_model': 512,
        'model.num_heads': 8,
        'model.d_feed_forward': 2048,
        'optimizer.name': 'adamw',
        'optimizer.learning_rate': 1e-4,
        'optimizer.weight_decay': 0.01,
        'train.num_lanes': 512,
    },
}
OURS = {
    'mad': {
        'model.num_heads': 4,
        'model.d_feed_forward': 512,
        'train.segment_length': 32,
        'train.segments_per_step': 4,
    },
    'state_tracking': {
        'data.task.lengths': (4, 8, 16, 32),
        'model.num_layers': 2,
        'optimizer.warmup_steps': 500,
        'optimizer.clip_norm': 1.0,
        'train.segment_length': 16,
        'train.segments_per_step': 2,
        'train.num_steps': 50_000,
    },
}
