"""Burtsev et al. (2020), Bulatov et al. (2022): as reported, and the scripts for WikiText-103."""

WIKITEXT103 = {
    'model.kind': 'language_model',
    'model.around': ('memory_tokens',) * 16,
    'model.num_layers': 16,
    'model.d_model': 410,
    'model.num_heads': 10,
    'model.head_dim': 41,
    'model.d_feed_forward': 2100,
    'model.dropout': 0.1,
    'model.attention_dropout': 0.0,
    'model.pre_norm': False,
    'model.final_norm': False,
    'model.init_std': 0.02,
    'model.cutoffs': (20_000, 40_000, 200_000),
    'model.div_val': 1,
    'optimizer.name': 'adam',
    'optimizer.learning_rate': 2.5e-4,
    'optimizer.schedule': 'cosine',
    'optimizer.warmup_steps': 0,
    'optimizer.clip_norm': 0.25,
    'train.num_steps': 200_000,
    'train.segment_length': 150,
    'evaluate.segment_length': 150,
}
WMT14 = {
    'model.kind': 'seq2seq',
    'model.num_layers': 6,
    'model.seq2seq.num_encoder_layers': 6,
    'model.seq2seq.encoder': 'plain',
    'model.seq2seq.num_tokens': 10,
    'data.pairs.languages': ('de', 'en'),
}
VALUES = {
    'mem_transformer_wikitext103': WIKITEXT103
    | {
        'model.memory_tokens.num_tokens': 20,
        'model.mem_transformer.memory_length': 150,
        'model.memory_tokens.carry': False,
    },
    'mem_transformer_wikitext103:recurrent': WIKITEXT103
    | {
        'model.memory_tokens.num_tokens': 10,
        'model.memory_tokens.at_end': True,
        'model.mem_transformer.memory_length': 0,
        'model.memory_tokens.carry': True,
        'train.segments_per_step': 4,
    },
    'mem_transformer_wmt14': WMT14,
    'mem_transformer_wmt14:layers=4': WMT14
    | {'model.num_layers': 4, 'model.seq2seq.num_encoder_layers': 4},
    'mem_transformer_wmt14:variant=ctrl,shared': WMT14
    | {'model.seq2seq.encoder': 'ctrl', 'model.seq2seq.shared_layers': True},
}
OURS = {
    'mem_transformer_wikitext103': {
        'train.num_lanes': 64,
        'data.pieces': 64,
        'model.vocab_size': 267_744,
        'model.dtype': 'bfloat16',
    },
    'mem_transformer_wmt14': {
        'model.d_model': 512,
        'model.num_heads': 8,
        'model.d_feed_forward': 2048,
        'model.dropout': 0.1,
        'model.vocab_size': 32_768,
        'model.dtype': 'bfloat16',
        'data.tokenizer.size': 32_768,
        'data.pairs.max_source': 128,
        'data.pairs.max_target': 128,
        'optimizer.learning_rate': 7e-4,
        'optimizer.b2': 0.98,
        'optimizer.schedule': 'inverse_sqrt',
        'optimizer.warmup_steps': 4000,
        'train.num_steps': 100_000,
        'train.num_lanes': 768,
        'train.loss_weights.label_smoothing': 0.1,
    },
}
