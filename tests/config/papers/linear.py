"""ELU, RFA and T2R as the survey compares them with MemSizer; guards and sizes of the released code."""

RELEASED = {
    'linear': {
        'model.linear.features': 'elu',
        'model.linear.guard': 'add',
        'model.linear.epsilon': 1e-6,
    },
    'rfa': {
        'model.linear.features': 'rfa',
        'model.linear.guard': 'clamp',
        'model.linear.epsilon': 1.0,
        'model.linear.size': 64,
        'model.linear.tau': 1.0,
        'model.linear.redraw': True,
        'model.linear.learned_scale': True,
    },
    't2r': {
        'model.linear.features': 't2r',
        'model.linear.guard': 'clamp',
        'model.linear.epsilon': 0.01,
        'model.linear.size': 64,
        'model.linear.learned_scale': True,
    },
}
COMMON = {
    'model.linear.gate': False,
    'model.linear.bias': True,
    'model.linear.carry': False,
    'model.linear.shift': 'none',
    'model.position': 'sinusoidal',
}
VALUES = {
    f'memsizer_wikitext103:memory={name}': fields
    | COMMON
    | {'model.num_layers': 32, 'model.d_model': 1024, 'model.num_heads': 8}
    for name, fields in RELEASED.items()
} | {
    # Causal and cross-attention are replaced, the encoder is not.
    f'memsizer_wmt16:memory={name}': fields
    | COMMON
    | {'model.seq2seq.cross': 'linear', 'model.seq2seq.encoder': 'none', 'model.num_layers': 6}
    for name, fields in RELEASED.items()
}
# Layers, biases and positions of the model that T2R begins with are those of T2R.
VALUES['memsizer_wikitext103:memory=local'] = {
    'model.local.position': 'none',
    'model.position': 'sinusoidal',
    'model.attention_bias': 'all',
    'model.num_layers': 32,
}
VALUES['memsizer_wikitext103:memory=t2r,convert=DIR'] = {'train.start_from': 'DIR'}
OURS = {}
