"""Sukhbaatar et al. (2021), Expire-Span: agents, Secs. 5.2 and A.3.1; no code was released for them."""

AGENT = {
    'model.num_layers': 2,
    'model.d_model': 64,
    'model.position': 'none',
    'model.agent.previous': False,  # "the input to the model is a binary tensor" of words
    'model.expire_span.ramp': 16,
    'reinforcement.algorithm': 'a2c',
    'reinforcement.entropy_cost': 5e-4,
}
CORRIDOR = {
    **AGENT,
    'model.expire_span.max_span': 200,
    'train.loss_weights.expire_span': 5e-6,
    'optimizer.name': 'rmsprop',
    'optimizer.learning_rate': 1e-4,
    'train.num_lanes': 64,
    'train.segment_length': 100,  # of back-propagation
    'train.num_steps': 15_625,  # of 64 x 100 steps of the environment: 100 M
}
PORTAL = {
    **AGENT,
    'model.expire_span.max_span': 100,
    'train.loss_weights.expire_span': 1e-6,
    'optimizer.name': 'adam',
    'optimizer.learning_rate': 5e-4,
    'optimizer.clip_norm': 0.1,
    'reinforcement.discount': 0.98,
    'train.num_lanes': 1024,
}
BASELINE = {
    'model.attention': ('transformer_xl',) * 2,
    'model.transformer_xl.same_length': True,
    'model.transformer_xl.memory_length': 32,
}


def without_spans(values):
    return {path: value for path, value in values.items() if 'expire_span' not in path}


VALUES = {
    'corridor': CORRIDOR,
    'portal': PORTAL,
    'corridor:memory=transformer_xl,memory_size=32': without_spans(CORRIDOR) | BASELINE,
    'portal:memory=transformer_xl,memory_size=32': without_spans(PORTAL) | BASELINE,
}
AGENT_OURS = {
    'model.num_heads': 4,
    'model.d_feed_forward': 256,
    'model.expire_span.initial_share': 0.5,
    'model.expire_span.position_length': 16,
    'reinforcement.value_cost': 0.5,
}
OURS = {
    'corridor': {
        **AGENT_OURS,
        'reinforcement.discount': 0.99,
        'optimizer.b2': 0.99,
        'optimizer.eps': 1e-8,
        'optimizer.clip_norm': 0.0,
        'train.segments_per_step': 1,
    },
    'portal': {
        **AGENT_OURS,
        'train.num_steps': 10_000,
        'train.segment_length': 50,
        'train.segments_per_step': 2,
    },
}
