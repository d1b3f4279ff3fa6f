"""Kesküll (2024), a thesis on Infini-attention in small models, Secs. 4-5: GPT-Neo on TinyStories.

Sizes and rates that its text leaves out are those of its replication package.
"""

MODEL = {
    'parameters': (9_300_000, 9_500_000),  # 9,412,864 at a width of 516
    'model.num_layers': 2,
    'model.num_heads': 4,
    'model.d_feed_forward': 1024,
    'model.vocab_size': 10_000,
    'model.dense.activation': 'gelu',
    'model.tie_weights': True,
    'model.scale_scores': False,
    'model.attention_bias': 'out',
    'model.position': 'none',
    'model.norm': 'layernorm',
    'model.norm_epsilon': 1e-5,
    'model.dropout': 0.0,
    'data.tokenizer.kind': 'bpe',
    'data.tokenizer.size': 10_000,
    'optimizer.name': 'adamw',
    'optimizer.learning_rate': 5e-4,
    'optimizer.schedule': 'linear',
    'optimizer.warmup_steps': 0,
    'optimizer.final_fraction': 0.0,
}
MEMORY = {
    'model.attention': ('infini', 'infini'),
    'model.infini.position': 'rotary',
    'model.infini.rotate_memory': True,
    'model.infini.features': 'elu',
    'model.infini.rule': 'delta',
    'model.infini.gate_init': 0.0,
    'model.infini.gate_std': 1.0,
    'optimizer.groups': (),
}
LENGTHS = {32: 16, 64: 8, 128: 4, 256: 2, 512: 1}
VALUES = {
    'tinystories_gpt_neo': MODEL | MEMORY | {'train.segment_length': 64},
    **{
        f'tinystories_gpt_neo:{memory}segment={length}': MODEL
        | fields
        | {'train.segment_length': length, 'train.segments_per_step': number}
        for memory, fields in (('', MEMORY), ('memory=local,', {'model.local.position': 'rotary'}))
        for length, number in LENGTHS.items()
    },
    'tinystories_gpt_neo:segment=32,from=BASE': MODEL | MEMORY | {'train.start_from': 'BASE'},
}
OURS = {
    'tinystories_gpt_neo': {
        'model.d_model': 512,
        'model.head_dim': 128,
        'model.infini.gradients': True,
        'train.num_steps': 8280 * 16,
        'train.num_lanes': 16,
        'train.segments_per_step': 8,
        'optimizer.accumulate_steps': 16,
        'optimizer.clip_norm': 1.0,
        'optimizer.b1': 0.9,
        'optimizer.b2': 0.999,
        'optimizer.weight_decay': 0.0,
    },
    'tinystories_gpt_neo:memory=local': {'model.attention': ('local', 'local')},
}
