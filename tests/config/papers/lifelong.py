"""Lifelong learning: de Masson d'Autume et al. (2019), Holla et al. (2020) and their releases."""

EPISODES = {
    'train.num_lanes': 16,
    'optimizer.name': 'adam',
    'optimizer.learning_rate': 3e-5,
    'optimizer.schedule': 'constant',
    'optimizer.clip_norm': 0.0,
    'data.task.rows': 115_000,
    'data.task.test_rows': 7_600,
}
RELATIONS = {'train.num_lanes': 4, 'data.task.max_length': 64, 'data.task.num_clusters': 10}
MBPA = {'train.num_lanes': 32, 'data.task.max_length': 128, 'data.task.rows': 115_000}
FILE = 'lifelong_classification:method='
VALUES = {
    f'{FILE}oml_er': EPISODES
    | {
        'data.task.max_length': 448,
        'lifelong.oml_er.updates': 5,
        'lifelong.oml_er.inner_rate': 1e-3,
        'lifelong.oml_er.replay_every': 9_600,
        'lifelong.oml_er.replay_rate': 0.01,
        'lifelong.oml_er.write_rate': 1.0,
        'parameters': (109_000_000, 111_000_000),
    },
    f'{FILE}maml_er': EPISODES | {'data.task.max_length': 448, 'lifelong.maml_er.updates': 5},
    f'{FILE}anml_er': EPISODES
    | {'data.task.max_length': 300, 'lifelong.anml_er.train_modulator': False},
    f'{FILE}replay': EPISODES
    | {'data.task.max_length': 448, 'lifelong.replay.replay_every': 9_600},
    f'{FILE}agem': EPISODES | {'data.task.max_length': 448, 'lifelong.agem.every': 9_600},
    f'{FILE}mbpa_plus': MBPA
    | {
        'lifelong.mbpa_plus.num_neighbours': 32,
        'lifelong.mbpa_plus.adapt_steps': 30,
        'lifelong.mbpa_plus.replay_every': 10_000,
        'lifelong.mbpa_plus.replay_rate': 0.01,
        'lifelong.mbpa_plus.write_rate': 1.0,
        'lifelong.mbpa_plus.neighbours': 'nearest',
    },
    f'{FILE}mbpa': MBPA | {'lifelong.mbpa.replay': False},
    f'{FILE}mbpa_random': MBPA | {'lifelong.mbpa_random.neighbours': 'random'},
    f'{FILE}meta_mbpa': MBPA
    | {
        'lifelong.meta_mbpa.write_rate': 0.01,
        'lifelong.meta_mbpa.write_beta': 10.0,
        'lifelong.meta_mbpa.replay_rate': 0.01,
        'lifelong.meta_mbpa.num_neighbours': 32,
        'lifelong.meta_mbpa.adapt_steps': 30,
        'lifelong.meta_mbpa.train_rate': 1e-5,
        'lifelong.meta_mbpa.adapt_anchor': 1e-3,
        'lifelong.meta_mbpa.order': 'second',
    },
    'lifelong_relations:method=oml_er': RELATIONS | {'lifelong.oml_er.replay_every': 1_600},
    'lifelong_relations:method=replay': RELATIONS | {'lifelong.replay.replay_every': 1_600},
}
OURS = {
    f'{FILE}online_ewc': {
        'model.dtype': 'bfloat16',
        'lifelong.online_ewc.every': 10_000,
        'lifelong.online_ewc.gamma': 0.95,
        'lifelong.online_ewc.penalty': 1_000.0,
    },
    'lifelong_qa:method=mbpa_plus': {
        'train.num_lanes': 8,
        'data.task.max_length': 384,
        'optimizer.learning_rate': 3e-5,
        'model.dtype': 'bfloat16',
    },
    'lifelong_relations:method=mbpa_plus': {'model.dtype': 'bfloat16', 'train.num_lanes': 4},
}
