"""Yogatama et al. (2021), SPALM, as the survey tells: sizes, memory and neighbours on WikiText-103."""

VALUES = {
    'spalm_wikitext103': {
        'model.num_layers': 18,
        'model.d_model': 512,
        'model.attention': ('transformer_xl',) * 18,
        'model.transformer_xl.memory_length': 512,
        'model.tie_weights': True,
        'evaluate.model.transformer_xl.memory_length': 3072,
        'data.tokenizer.kind': 'words',
        'train.segment_length': 512,
        'evaluate.segment_length': 512,
        'retrieval.key': 'hidden',
        'retrieval.spalm.k': 4,
        'retrieval.spalm.start': 'fresh',
        'retrieval.spalm.frozen': False,
        'retrieval.spalm.learned_scale': False,
    },
    # The model of the keys: no memory, otherwise the same.
    'spalm_wikitext103:memory=local': {
        'model.num_layers': 18,
        'model.d_model': 512,
        'model.attention': ('local',) * 18,
        'retrieval.key': 'hidden',
    },
}
OURS = {
    'spalm_wikitext103': {
        'model.cutoffs': (),
        'model.d_feed_forward': 2048,
        'model.num_heads': 8,
        'model.vocab_size': 267_744,
        'model.dropout': 0.1,
        'model.dtype': 'bfloat16',
        'data.documents': 'wiki',
        'optimizer.learning_rate': 2.5e-4,
        'optimizer.schedule': 'cosine',
        'optimizer.warmup_steps': 4000,
        'optimizer.clip_norm': 0.25,
        'train.num_steps': 200_000,
        'train.num_lanes': 32,
        'retrieval.index': 'faiss',
        'retrieval.context': 256,
    },
}
