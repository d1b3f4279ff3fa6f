"""Martins et al. (2022): document-grounded dialogue (Sec. 4.3, App. C.3)."""

CONTINUOUS = 'model.infinity_former'
VALUES = {
    'cmu_dog': {
        'model.num_layers': 12,
        'model.num_heads': 12,
        'model.d_model': 768,
        f'{CONTINUOUS}.memory_length': 0,
        f'{CONTINUOUS}.num_basis': 512,
        f'{CONTINUOUS}.widths': (0.005, 0.01),
        f'{CONTINUOUS}.tau': 0.5,
        f'{CONTINUOUS}.sigma_0': 0.05,
        f'{CONTINUOUS}.density': 'gaussian',
        'data.task.document': 'before',
        'optimizer.name': 'adam',
        'optimizer.learning_rate': 5e-5,
        'optimizer.schedule': 'linear',
        'optimizer.final_fraction': 0.0,
        'optimizer.groups': (),
    },
    'cmu_dog:memory=compressive': {
        'model.compressive.compressed_length': 512,
        'model.compressive.rate': 3,
        'model.compressive.compression': 'convolution',
        'model.compressive.reconstruction': 'attention',
    },
    'cmu_dog:no_document,memory=local': {'data.task.document': 'none'},
}
OURS = {
    'cmu_dog': {
        f'{CONTINUOUS}.biases': False,
        f'{CONTINUOUS}.padding': True,
        f'{CONTINUOUS}.num_bins': 128,
        f'{CONTINUOUS}.kl': 'true',
        f'{CONTINUOUS}.num_samples': 512,
        f'{CONTINUOUS}.ridge': 0.5,
        f'{CONTINUOUS}.sigma_sq_min': 1e-4,
        'train.loss_weights.kl': 1e-5,
        'train.segment_length': 510,
        'train.num_lanes': 4,
        'train.num_steps': 3500,
        'model.dtype': 'bfloat16',
        'optimizer.clip_norm': 1.0,
        'generate.length': 50,
        'generate.temperature': 1.0,
        'generate.top_p': 0.9,
        'data.task.min_history': 2,
    },
    'cmu_dog:memory=compressive': {
        'model.compressive.memory_length': 510,
        'model.compressive.position': 'alibi_beyond',
    },
}
