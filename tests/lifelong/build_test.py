"""What configurations stand for: encoders of folders, memories no larger than a stream, test sets."""

import chex
import jax
import numpy as np
import pytest

from configs import lifelong_classification, lifelong_relations
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.lifelong import pretrain_encoder, settings
from longmem_jax.lifelong.build import Built
from longmem_jax.lifelong.data import classification
from longmem_jax.lifelong.rows import Rows
from longmem_jax.lifelong.task import LifelongTask, filled, shared_sizes
from tests.lifelong import relations_test
from tests.lifelong.small import ROWS, small_config


def built_of(config, workdir, said=None):
    mesh = sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1])
    report = (lambda line: None) if said is None else said.append
    return Built(config, workdir, mesh, report)


def small_relations(folder, argument='method=sequential'):
    relations_test.write(folder)
    config = lifelong_relations.get_config(f'tiny,length=16,{argument}')
    config.data.path = str(folder)
    config.data.task.update(rows=0, test_rows=0, num_clusters=2)
    config.data.tokenizer.size = 300
    return config


def test_relations_are_grouped_by_the_tokens_of_the_encoder_or_by_a_file(tmp_path):
    config, said = small_relations(tmp_path), []
    built = built_of(config, tmp_path, said)
    assert len(built.stream.names) == 2 and len(built.stream.rows) == 6
    assert said == [
        "2 clusters of 6 relations: k-means of the mean vectors of the encoder's tokens"
    ]
    (tmp_path / 'clusters').write_text('1 2 6\n3 4 5\n')
    config.data.task.clusters = str(tmp_path / 'clusters')
    built = built_of(config, tmp_path, said)
    assert sorted(len(rows) for rows in built.stream.tests) == [1, 2]
    assert said[1].endswith(f'relations: {tmp_path / "clusters"}')
    offered = int((built.stream.rows.answer.candidates >= 0).sum())
    every = []
    for only_seen, kind in ((True, 'joint'), (False, 'tasks')):
        config.data.task.only_seen, config.lifelong.stream = only_seen, kind
        every.append(int((built_of(config, tmp_path).stream.rows.answer.candidates >= 0).sum()))
    assert every[0] == every[1] > offered, 'the bound, or only_seen=False, has lost candidates'
    config.lifelong.stream, config.data.task.only_seen = 'tasks', True
    config.data.task.test_rows = 1
    with pytest.raises(UsageError, match='no row of the test file has one of its relations'):
        _ = built_of(config, tmp_path).stream


def test_a_memory_has_no_room_for_more_rows_than_the_stream(tmp_path):
    config = small_config(tmp_path, 'method=mbpa_plus')
    config.lifelong.mbpa_plus.capacity = 575_000
    assert built_of(config, tmp_path).abstract_state.memory.keys.shape == (5 * ROWS, 16)
    config.lifelong.mbpa_plus.num_neighbours = 5 * ROWS + 1
    with pytest.raises(UsageError, match='mbpa_plus.num_neighbours = 101: the stream has 100 rows'):
        _ = built_of(config, tmp_path).learner


def test_rows_that_are_too_long_for_the_encoder(tmp_path):
    config = small_config(tmp_path)
    config.data.task.max_length = 13
    with pytest.raises(UsageError, match='max_length = 13: .*segment_length = 12 is less'):
        settings.require(config)
    config.train.segment_length = 13
    with pytest.raises(UsageError, match='fewer positions, 12'):
        settings.require(config)


def test_tiny_learns_with_the_same_rate_from_the_first_step(tmp_path):
    optimizer = small_config(tmp_path).optimizer
    assert (optimizer.schedule, optimizer.warmup_steps) == ('constant', 0)


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory):
    """A folder of texts, and one of an encoder of them."""
    root = tmp_path_factory.mktemp('pretrained')
    (root / 'data').mkdir()
    pretrain_encoder.run(small_config(root / 'data'), str(root / 'bert'), steps=2, batch=2)
    return root


def with_folder(pretrained, name):
    config = lifelong_classification.get_config(f'tiny,path={pretrained / "bert"},method={name}')
    small = small_config(pretrained / 'data', f'method={name}')
    config.data.path, config.data.task = small.data.path, small.data.task
    config.lifelong[name] = small.lifelong[name]
    config.train.segment_length = config.evaluate.segment_length = 12
    return config


@pytest.mark.slow
def test_texts_are_not_read_where_the_vocabulary_is_known(pretrained, tmp_path, monkeypatch):
    def refuse(found):
        raise AssertionError('documents are read for a vocabulary that a folder has')

    monkeypatch.setattr(classification, 'training_texts', refuse)
    assert built_of(with_folder(pretrained, 'sequential'), tmp_path).tokenizer.vocab_size


@pytest.mark.slow
@pytest.mark.parametrize('name', ['sequential', 'mbpa_plus', 'anml_er'])
def test_the_state_of_a_folder_is_known_before_it_is_read(name, pretrained, tmp_path):
    said = []
    built = built_of(with_folder(pretrained, name), tmp_path, said)
    abstract = built.abstract_state
    assert not said, 'shapes need no files'
    first = built.first_state()
    assert len(said) == (2 if name == 'anml_er' else 1), said
    chex.assert_trees_all_equal_shapes_and_dtypes(abstract, first)


def test_a_model_that_is_not_that_of_the_folder(pretrained, tmp_path):
    config = with_folder(pretrained, 'sequential')
    config.model.d_feed_forward = 48
    with pytest.raises(UsageError, match='another model:\n  d_feed_forward = 48, not 16'):
        _ = built_of(config, tmp_path).encoder


def test_test_sets_share_their_sizes():
    tests = tuple(
        Rows(np.arange(n)[:, None], np.zeros((n, 1)), np.arange(n)) for n in (3, 9, 20, 21, 100)
    )
    sizes = shared_sizes(tests)
    assert sizes == [25, 25, 25, 25, 100]
    assert filled(tests[0], 5).answer.tolist() == [0, 1, 2, 2, 2]
    assert shared_sizes(tests[:1]) == [3]


def test_scores_only_at_the_end(tmp_path):
    """Neither before the stream nor after its last row is anything scored that `finish` scores."""
    for field, value in (('measure', 'end'), ('stream', 'joint')):
        config = small_config(tmp_path)
        config.lifelong[field] = value
        task = LifelongTask(built_of(config, tmp_path), tmp_path, None, None)
        task._tests = None
        task._position = len(task._built.stream.rows)
        task.evaluate(None, 0)
        task.evaluate(None, 25)


@pytest.mark.parametrize('method', ['mbpa', 'oml_er'])
def test_the_step_is_lowered_for_devices_that_have_no_data(tmp_path, method):
    """As `--mode=compile` does for a TPU slice."""
    config = small_config(tmp_path, f'method={method}')
    mesh = sharding.make_mesh(config.mesh.to_dict(), jax.devices())
    with pytest.raises(UsageError, match='tokenizer.path.*give --workdir= or the path'):
        Built(config, None, mesh).lower_step()
    built = Built(config, tmp_path, mesh)
    state, metrics = built.lower_step().out_info
    jax.tree.map(
        lambda found, wanted: chex.assert_shape(found, wanted.shape), state, built.abstract_state
    )
    assert metrics['loss'].shape == ()


def test_a_vocabulary_of_other_rows_is_used_by_a_trained_learner_alone(tmp_path):
    """A start that failed leaves one behind; the next may have other settings."""
    config = small_config(tmp_path)
    before = built_of(config, tmp_path).tokenizer.fingerprint()
    config.lifelong.order = 'ii'
    assert built_of(config, tmp_path).tokenizer.fingerprint() == before
    config.data.task.rows = ROWS - 1
    with pytest.raises(UsageError, match='100 documents; config.data has .*, 95 documents'):
        _ = built_of(config, tmp_path).tokenizer
    (tmp_path / 'checkpoints' / '3').mkdir(parents=True)
    assert built_of(config, tmp_path).tokenizer.fingerprint() == before
