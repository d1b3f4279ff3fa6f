"""The config.json of a run: as it was, and one message for everything that is none."""

import importlib
import json
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import corridor, host, lifelong_classification, memformer_wikitext103, quickstart
from longmem_jax.commands.start_from import parameters_of
from longmem_jax.config import overrides
from longmem_jax.config.base import base
from longmem_jax.config.saved import restored, saved_config, write
from longmem_jax.config.sections import add
from longmem_jax.errors import UsageError

CONFIGS = Path(__file__).parents[2] / 'configs'


def content(config=quickstart, argument='tiny'):
    return json.loads(config.get_config(argument).to_json())


@pytest.mark.parametrize(
    'config', [quickstart, corridor, host, lifelong_classification, memformer_wikitext103]
)
def test_a_saved_config_is_the_config(config):
    wanted = config.get_config('tiny')
    found = restored(content(config), 'config.json')
    assert found.to_dict() == wanted.to_dict()

    def types(value):
        if isinstance(value, dict):
            return {name: types(each) for name, each in value.items()}
        return type(value)

    assert types(found.to_dict()) == types(wanted.to_dict())


def test_overrides_do_what_they_do_with_the_file_of_the_config():
    """What followed another field in the file of the config still does."""
    arguments = [('train.segment_length', '16'), ('evaluate.context', '4'), ('data.path', 'X')]
    wanted = quickstart.get_config('tiny')
    add(wanted, 'retrieval')
    found = restored(json.loads(wanted.to_json()), 'config.json')
    for config in (found, wanted):
        overrides.apply(config, arguments)
    assert found.to_dict() == wanted.to_dict()
    assert found.evaluate.segment_length == 16 and found.retrieval.context == 4


def test_numbers_keep_their_types():
    given = content()
    given['optimizer']['learning_rate'] = 1
    assert isinstance(restored(given, 'x').optimizer.learning_rate, float)


def changed(path, value):
    whole = content()
    section = whole
    *parents, last = path.split('.')
    for name in parents:
        section = section[name]
    section[last] = value
    return whole


@pytest.mark.parametrize(
    'wrong, message',
    [
        ([], 'not the configuration of a run'),
        ({'model_type': 'gpt2'}, 'configs/host.py:path=FOLDER'),
        (changed('train.num_stpes', 3), "has no field 'num_stpes'; did you mean 'num_steps'"),
        (changed('model.d_model', 1.5), 'config.model.d_model = 1.5: must be of the type int'),
        (changed('model.pre_norm', 1), 'config.model.pre_norm = 1: must be of the type bool'),
        (changed('train.num_lanes', True), 'config.train.num_lanes = True: must be of the type int'),
        (changed('model.attention', 'local'), "attention = 'local': must be of the type tuple"),
        (changed('data.path', ['a']), "config.data.path = .*must be of the type str"),
        (changed('data.tokenizer', 'bytes'), "config.data.tokenizer = 'bytes': must be a section"),
        (changed('model.dropout', float('nan')), 'dropout = nan: not a number'),
        (changed('model.d_model', 10**30), 'not a number that a field can have'),
        (changed('train.loss_weights', {'to_dict': 1}), "'to_dict' cannot be the name of a field"),
        (changed('data.task', {'a.b': 1}), "'a.b' cannot be the name of a field"),
        (changed('data.task', {'a': [[[[[[[[[[1]]]]]]]]]]}), 'more than 8 nested lists or sections'),
        (changed('model.transformer_xl', {'memory_lenght': 3}), "did you mean 'memory_length'"),
    ],
)  # fmt: skip
def test_what_is_no_config_is_one_message(wrong, message):
    with pytest.raises(UsageError, match=message) as caught:
        restored(wrong, 'DIR/config.json')
    assert '\n' not in str(caught.value) and str(caught.value).startswith('DIR/config.json: ')


@pytest.mark.parametrize('text', ['1e38', '1e300', 'inf', '-0.0', '5'])
def test_a_number_of_the_command_line_is_one_of_a_file(text, tmp_path):
    """Or the `config.json` that a run wrote could not be read when it goes on."""
    config = quickstart.get_config('tiny')
    overrides.apply(config, [('optimizer.learning_rate', text)])
    write(config, tmp_path / 'config.json')
    found = restored(json.loads((tmp_path / 'config.json').read_text()), 'config.json')
    assert found.optimizer.learning_rate == float(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    max_leaves=8,
)
PATHS = st.sampled_from(
    ['model', 'model.attention', 'model.lora', 'model.transformer_xl', 'data.task', 'train', 'notes',
     'evaluate.model', 'train.loss_weights', 'lifelong', 'mesh.data', 'optimizer.groups', 'seed']
)  # fmt: skip


@given(JSON, PATHS)
def test_anything_else_is_a_config_or_one_message(value, path):
    try:
        restored(changed(path, value), 'config.json')
    except UsageError:
        pass


@pytest.mark.parametrize(
    'damaged, message',
    [
        (b'', 'not JSON'),
        (b'{"model": {', 'not JSON'),
        (b'\xff\xfe{', 'not JSON in UTF-8'),
        (b'[' * 200_000, 'more than 64 levels'),
        (b'{"data": {}, "data": {}}', "'data' is there twice"),
    ],
)
def test_a_damaged_file_is_one_message(damaged, message, tmp_path):
    (tmp_path / 'config.json').write_bytes(damaged)
    with pytest.raises(UsageError, match=message):
        saved_config(tmp_path)


def test_a_run_to_start_from_has_a_model_that_can_be_made(tmp_path):
    (tmp_path / 'config.json').write_text(json.dumps(changed('model.d_model', -8)))
    experiment = types.SimpleNamespace(config=base())
    experiment.config.train.start_from = str(tmp_path)
    with pytest.raises(
        UsageError, match=r'start_from = .*its config.json has problems:\n.*d_model'
    ):
        parameters_of(experiment, print)


@pytest.mark.parametrize('name', sorted(path.stem for path in CONFIGS.glob('[a-z]*.py')))
def test_every_config_can_be_read_again(name, tmp_path):
    config = importlib.import_module(f'configs.{name}').get_config()
    (tmp_path / 'config.json').write_text(config.to_json())
    again = saved_config(tmp_path)
    assert again.to_json() == config.to_json()


def test_a_changed_value_is_said(tmp_path, capsys):
    """Many values of a config are possible; only a checksum tells one that the run did not have."""
    path = tmp_path / 'config.json'
    write(quickstart.get_config('tiny'), path)
    assert saved_config(path).to_dict() == quickstart.get_config('tiny').to_dict()
    assert not capsys.readouterr().err
    sealed = json.loads(path.read_text())
    sealed['evaluate']['segment_length'] += 1
    path.write_text(json.dumps(sealed))
    assert saved_config(path).evaluate.segment_length == sealed['evaluate']['segment_length']
    assert 'was changed after the run wrote it' in capsys.readouterr().err
