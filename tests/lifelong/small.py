"""Five small text classification sets in files, and a configuration that learns them in seconds."""

from configs import lifelong_classification
from longmem_jax.lifelong.data import classification
from tests.lifelong.classification_test import write_set

ROWS, TESTS = 20, 4


def small_config(folder, argument='method=sequential'):
    """A configuration with one layer of 16; files are written to `folder`."""
    for name in classification.SETS:
        write_set(folder, name, train=ROWS + 4, test=TESTS)
    config = lifelong_classification.get_config(f'tiny,{argument}')
    config.data.path = str(folder)
    config.data.task.update(rows=ROWS, test_rows=TESTS, max_length=12)
    config.data.tokenizer.size = 300
    model = config.model
    model.num_layers, model.attention, model.feed_forward = 1, ('local',), ('dense',)
    model.d_model = model.d_embed = model.d_feed_forward = 16
    model.num_heads, model.head_dim, model.vocab_size, model.num_positions = 2, 8, 300, 12
    config.train.segment_length = config.evaluate.segment_length = 12
    config.train.num_lanes = config.evaluate.num_lanes = 4
    config.train.log_every, config.checkpoint.every = 5, 100
    fields = config.lifelong[config.lifelong.method]
    for name, value in dict(replay_every=40, every=40, replay_rate=0.1, capacity=60).items():
        if name in fields:
            fields[name] = value
    return config
