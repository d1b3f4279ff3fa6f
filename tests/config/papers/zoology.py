"""Arora et al. (2023), Zoology: multi-query associative recall, by the released example configs."""

VALUES = {
    'mqar': {
        'data.task.num_words': 8192,
        'data.task.documents': 180_000,
        # 100,000 of the first size, and 20,000 of each other.
        'data.task.sizes': (*[(64, 4)] * 5, (128, 8), (256, 16), (256, 32), (256, 64)),
        'data.task.power': 0.01,
        'data.task.passes': 1,
        'data.task.fill': 'random',
        'optimizer.learning_rate': 1e-3,
    },
}
OURS = {
    'mqar': {
        'model.num_layers': 2,
        'model.d_model': 128,
        'model.d_feed_forward': 512,
        'optimizer.warmup_steps': 1000,
        'optimizer.clip_norm': 1.0,
        'train.segment_length': 64,
        'train.num_steps': 50_000,
    },
}
