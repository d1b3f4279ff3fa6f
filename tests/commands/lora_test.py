"""A run that trains low-rank parts of another run's model, and continues from its checkpoint."""

import numpy as np
import pytest

from longmem_jax.commands.train import train
from tests.commands.train_test import (
    experiment,
    small_config,
    texts,  # noqa: F401  (a fixture)
    training_lines,
)
from tests.models.adapted_test import separate
from tests.toys import by_path

pytestmark = pytest.mark.slow  # whole runs of the command


def test_low_rank_parts_are_trained_saved_and_restored(texts, tmp_path, capsys):  # noqa: F811
    config = small_config(texts)
    config.train.num_steps, config.checkpoint.every = 2, 2
    base = experiment(config, tmp_path / 'base')
    train(base)
    before, _ = base.restore_parameters()
    capsys.readouterr()
    config = small_config(texts)
    config.model.lora.rank = 2
    config.optimizer.groups = (('/lora/', 1.0, True), ('', 0.0, False))
    config.train.update(num_steps=4, start_from=str(tmp_path / 'base'))
    config.checkpoint.every = 2
    run = experiment(config, tmp_path / 'lora')
    train(run)
    assert 'projections/query/lora/a' in ' '.join(capsys.readouterr().out.split())
    after, step = experiment(config, tmp_path / 'lora').restore_parameters()
    kept, own = separate(after)
    assert step == 4
    assert any(np.abs(leaf).max() > 0 for path, leaf in by_path(own).items() if path.endswith('/b'))
    assert by_path(kept).keys() == by_path(before).keys()
    for path, leaf in by_path(before).items():
        np.testing.assert_array_equal(by_path(kept)[path], leaf, err_msg=path)


def test_what_is_frozen_has_no_part_in_the_norm_of_gradients(texts, tmp_path):  # noqa: F811
    """Which clips those of the rest. While B is zero, no gradient reaches A, and all else is frozen."""
    config = small_config(texts)
    config.model.lora.rank = 2
    config.optimizer.groups = (('/lora/a$', 1.0, False), ('', 0.0, False))
    config.train.update(num_steps=2, log_every=1)
    run = experiment(config, tmp_path / 'run')
    train(run)
    norms = [line['grad_norm'] for line in training_lines(run.workdir)]
    assert norms and not any(norms), norms
