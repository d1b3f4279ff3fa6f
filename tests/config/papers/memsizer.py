"""Zhang and Cai (2022), MemSizer: language models and translation, by the survey and the scripts."""

# The released scripts.
LANGUAGE_MODEL = {
    'model.num_layers': 32,
    'model.d_model': 1024,
    'model.num_heads': 8,
    'model.head_dim': 128,
    'model.d_feed_forward': 4096,
    'model.dropout': 0.2,
    'model.attention_dropout': 0.1,
    'model.layer_drop': 0.2,
    'model.cutoffs': (20_000, 60_000),
    'model.pre_norm': True,
    'model.final_norm': False,
    'model.init': 'glorot_uniform',
    'train.num_steps': 286_000,
    'train.segment_length': 512,
    'train.num_lanes': 144,  # 8 x 3 x 3,072 tokens
    'optimizer.clip_norm': 0.1,
    'optimizer.warmup_steps': 16_000,
    'evaluate.context': 256,
}
TRANSLATION = {
    'model.num_layers': 6,
    'model.seq2seq.num_encoder_layers': 6,
    'model.seq2seq.encoder': 'none',
    'model.d_model': 1024,
    'model.num_heads': 16,
    'model.d_feed_forward': 4096,
    'model.dropout': 0.3,
    'model.pre_norm': False,
    'model.init': 'glorot_uniform',
    'optimizer.name': 'adam',
    'optimizer.b1': 0.9,
    'optimizer.b2': 0.98,
    'optimizer.learning_rate': 5e-4,
    'optimizer.schedule': 'inverse_sqrt',
    'optimizer.warmup_steps': 4000,
    'optimizer.clip_norm': 0.0,
    'train.num_steps': 90_000,
    'train.loss_weights.label_smoothing': 0.1,
    'translate.beams': 5,
    'translate.length_penalty': 1.0,
}
VALUES = {
    'memsizer_wikitext103': LANGUAGE_MODEL
    | {
        'model.memsizer.num_slots': 32,
        'model.memsizer.query_scale': 32.0,
        'model.memsizer.write_scale': 1.0,
        'model.memsizer.bias': True,
        'model.memsizer.shift': 'none',
        'model.memsizer.carry': False,
    },
    'memsizer_wikitext103:slots=128': {'model.memsizer.num_slots': 128},
    'memsizer_wikitext103:heads=4': {'model.num_heads': 4, 'model.head_dim': 256},
    'memsizer_wikitext103:frozen': {
        'optimizer.groups': (('attention/maps/query/', 0.0, False),),
    },
    'memsizer_wmt16': TRANSLATION
    | {
        'model.memsizer.num_slots': 4,
        'model.memsizer.query_scale': 8.0,
        'model.memsizer.write_scale': 8.0,
        'model.memsizer.shift': 'none',
        'model.seq2seq.cross': 'memsizer',
        'model.seq2seq.cross_slots': 32,
        'data.pairs.languages': ('en', 'de'),
    },
    'memsizer_wmt16:memory=local': TRANSLATION | {'model.seq2seq.cross': 'softmax'},
    'memsizer_wmt16:pair=en-fr': {
        'model.dropout': 0.1,
        'data.pairs.languages': ('en', 'fr'),
    },
    'memsizer_wmt16:pair=zh-en': {'model.dropout': 0.3, 'data.pairs.languages': ('zh', 'en')},
}
OURS = {
    'memsizer_wikitext103': {
        'optimizer.name': 'adam',
        'optimizer.learning_rate': 2.5e-4,
        'optimizer.schedule': 'cosine',
        'model.vocab_size': 267_744,
        'model.dtype': 'bfloat16',
    },
    'memsizer_wmt16': {
        'model.vocab_size': 32_768,
        'data.tokenizer.kind': 'bpe',
        'train.num_lanes': 1792,
        'model.dtype': 'bfloat16',
    },
}
