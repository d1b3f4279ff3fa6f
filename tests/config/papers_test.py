"""Every config has its paper's values, and says where it has not."""

import importlib
import pkgutil
import re

import pytest

from tests.config import papers
from tests.config.sizes import num_parameters

MODULES = [
    importlib.import_module(f'{papers.__name__}.{found.name}')
    for found in pkgutil.iter_modules(papers.__path__)
]
MISSING = '(no such field)'


def get_config(argument):
    """`argument`: 'enwik8' or 'enwik8:memory=local,tiny', as after `--config=configs/`."""
    name, _, rest = argument.partition(':')
    return importlib.import_module(f'configs.{name}').get_config(rest)


def value_at(config, path):
    for name in path.split('.'):
        if not hasattr(config, 'keys') or name not in config:
            return MISSING
        config = config[name]
    return config


def tables(name):
    return [
        pytest.param(argument, values, id=f'{module.__name__.rpartition(".")[2]}-{argument}')
        for module in MODULES
        for argument, values in getattr(module, name).items()
    ]


def differences(config, values):
    """[(path, value in the config, value in the table)] of all that differ."""
    found = {path: value_at(config, path) for path in values}
    return [(path, found[path], values[path]) for path in values if found[path] != values[path]]


@pytest.mark.parametrize('argument, values', tables('VALUES'))
def test_values_are_the_papers(argument, values):
    values = dict(values)
    least, most = values.pop('parameters', (0, float('inf')))
    config = get_config(argument)
    assert differences(config, values) == [], (
        f'configs/{argument} differs from its paper. Set the value of the paper, or move it to OURS and'
        " name it in the config's docstring under 'Not the paper's:'."
    )
    if most < float('inf'):
        assert least <= num_parameters(config) <= most


@pytest.mark.parametrize('argument, values', tables('OURS'))
def test_values_of_our_own_are_named_with_a_reason(argument, values):
    assert differences(get_config(argument), values) == []
    config = importlib.import_module(f'configs.{argument.partition(":")[0]}')
    _, found, ours = config.__doc__.partition("Not the paper's:")
    assert found, f"configs/{argument} has no paragraph 'Not the paper's:' in its docstring"
    named = set(re.findall(r'`([^`]+)`', ours))
    unnamed = {
        path for path in values if path not in named and path.rpartition('.')[2] not in named
    }
    assert not unnamed, f"name these under 'Not the paper's:' of configs/{argument}: {unnamed}"
