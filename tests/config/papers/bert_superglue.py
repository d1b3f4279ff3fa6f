"""Memory tokens on BERT (Burtsev et al., 2020), as surveyed: BERT base, on tasks of understanding."""

VALUES = {
    'bert_superglue': {
        'model.kind': 'classifier',
        'model.num_layers': 12,
        'model.d_model': 768,
        'model.num_heads': 12,
        'parameters': (109_000_000, 111_000_000),
    }
}
OURS = {
    'bert_superglue': {
        'model.classifier.num_tokens': 10,
        'model.classifier.dropout': 0.1,
        'model.attention_dropout': 0.1,
        'model.residual_dropout': 0.1,
        'model.embedding_dropout': 0.1,
        'model.dropout': 0.0,
        'model.dtype': 'bfloat16',
        'data.task.max_length': 512,
        'optimizer.name': 'adamw',
        'optimizer.learning_rate': 2e-5,
        'optimizer.weight_decay': 0.01,
        'optimizer.schedule': 'linear',
        'optimizer.warmup_steps': 50,
        'optimizer.clip_norm': 1.0,
        'train.num_lanes': 32,
        'train.num_steps': 500,
    },
    'bert_superglue:task=BoolQ': {'train.num_steps': 900, 'optimizer.warmup_steps': 90},
    'bert_superglue:task=MultiRC': {'train.num_steps': 2600},
    'bert_superglue:task=WiC': {'train.num_steps': 550},
}
