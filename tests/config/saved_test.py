"""`config.json` of a run, made by anybody."""

import importlib
import json
import types
from pathlib import Path

import pytest

from longmem_jax.commands.start_from import parameters_of
from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.errors import UsageError
from longmem_jax.experiment import saved_config

CONFIGS = Path(__file__).parents[2] / 'configs'
WHOLE = base().to_dict()


def saved(tmp_path, content):
    (tmp_path / 'config.json').write_bytes(
        content if isinstance(content, bytes) else json.dumps(content).encode()
    )
    return saved_config(tmp_path)


def changed(section, **fields):
    return WHOLE | {section: WHOLE[section] | fields}


@pytest.mark.parametrize(
    'content, message',
    [
        (b'', 'not JSON'),
        (b'{"model": {', 'not JSON'),
        (b'\xff\xfe{', 'not JSON in UTF-8'),
        (b'[' * 200_000, 'more than 64 levels'),
        (b'{"data": {}, "data": {}}', "'data' is there twice"),
        ([], 'not the configuration of a run'),
        (None, 'not the configuration of a run'),
        ({}, 'not the configuration of a run'),
        (changed('model', d_model='wide'), "config.model.d_model = 'wide': must be a number"),
        (changed('model', d_model=True), 'config.model.d_model = True: must be a number'),
        (changed('model', attention='local'), "config.model.attention = 'local': must be a list"),
        (changed('train', segment_length=[]), 'config.train.segment_length = '),
        (changed('train', start_from=3), 'config.train.start_from = 3: must be text'),
        (changed('data', tokenizer=3), 'config.data.tokenizer = 3: must be an object'),
        (changed('retrieval', verify='x'), 'config.retrieval.verify = '),
        (WHOLE | {'evaluate': 3}, 'config.evaluate = 3: must be an object'),
        (WHOLE | {'optimizer': {'name': None}}, 'config.optimizer.name = None: must be text'),
    ],
)
def test_a_configuration_is_not_trusted(content, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        saved(tmp_path, content)


def test_a_run_to_start_from_has_a_model_that_can_be_made(tmp_path):
    (tmp_path / 'config.json').write_text(json.dumps(changed('model', d_model=-8)))
    experiment = types.SimpleNamespace(config=base())
    experiment.config.train.start_from = str(tmp_path)
    with pytest.raises(UsageError, match=r'start_from = .*its config.json has faults:\n.*d_model'):
        parameters_of(experiment, print)


def test_a_name_that_no_field_has_is_no_traceback(tmp_path):
    for name in ('a.b', '', '__class__', 'items', '\u2603', 'model.d_model', 'keys', '_fields'):
        try:
            config = saved(tmp_path, changed('model', **{name: {'a.b': 1}}) | {name: 1})
            checks.require_runnable(config, 1)
        except UsageError:
            pass


@pytest.mark.parametrize('name', sorted(path.stem for path in CONFIGS.glob('[a-z]*.py')))
def test_every_config_can_be_read_again(name, tmp_path):
    config = importlib.import_module(f'configs.{name}').get_config()
    again = saved(tmp_path, config.to_json().encode())
    assert again.to_json() == config.to_json()
