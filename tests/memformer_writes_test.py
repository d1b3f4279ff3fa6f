"""What slots leave on themselves when a key is written, and when filler is."""

import jax
import numpy as np
import pytest
from flax.serialization import msgpack_serialize

from experiments.layer_memories import slots
from experiments.recall.run import configuration
from experiments.short_trainings import Trainer
from tests.toys import parameters


def test_the_three_kinds_are_counted_over_slots_and_writes():
    kept = np.asarray([[0.9, 0.3, 0.05, 0.5], [0.7, 0.1, 0.01, 0.2]], np.float32)
    assert slots.cells(kept) == ['2', '38', '38', '25', '0.03 - 0.80']


@pytest.mark.slow  # compiles a model
def test_writes_of_keys_and_of_filler_are_those_of_the_documents(tmp_path):
    changes = [('data.task.eval_documents', '9'), ('evaluate.num_lanes', '2')]
    experiment = Trainer(configuration('memformer', changes)).seeded(0)
    params = parameters(experiment.evaluation_model)
    saved = msgpack_serialize(jax.tree.map(np.asarray, params))
    (tmp_path / 'parameters.msgpack').write_bytes(saved)
    found = slots.shares(experiment, tmp_path)

    length, expected = experiment.config.train.segment_length, {'the key': 0, 'filler': 0}
    corpus = experiment.corpus('test')
    for document in (corpus[index] for index in range(len(corpus))):
        inputs = document.tokens[:-1]
        for end in range(length, len(inputs), length):  # the last segment is never written
            has_key = slots.KEY in inputs[end - length : end]
            expected['the key' if has_key else 'filler'] += 1
    assert {name: len(kept) for name, kept in found.items()} == expected
    assert min(expected.values()) > 5
    for kept in found.values():
        assert kept.shape[1] == 16 and 0 <= kept.min() and kept.max() <= 1
