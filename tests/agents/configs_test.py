"""Configs of agents fit their environments, with every memory."""

import importlib

import jax
import numpy as np
import pytest

from longmem_jax.agents import settings
from longmem_jax.agents.build import Built
from longmem_jax.config import checks
from longmem_jax.config.recipes import recipes
from longmem_jax.errors import UsageError
from tests.agents.small import experiment

OWN = ('corridor', 'portal')
SUITES = {'memory_chain': 'gymnax', 'popgym_arcade': 'popgym_arcade', 'craftax': 'craftax'}


def get_config(name, argument=''):
    return importlib.import_module(f'configs.{name}').get_config(argument)


@pytest.mark.parametrize('name', (*OWN, *SUITES))
def test_rules_hold_with_every_memory(name):
    for memory in sorted(recipes()):
        for argument in (
            f'memory={memory}',
            f'tiny,memory={memory}',
            f'memory_size=24,memory={memory}',
        ):
            config = get_config(name, argument)
            assert settings.find_problems(config, 1) == [], argument
            if name in OWN:
                settings.make_environment(config)


@pytest.mark.parametrize('name', SUITES)
def test_a_suite_that_is_installed_fits(name):
    pytest.importorskip(SUITES[name])
    for argument in ('', 'tiny'):
        try:
            settings.make_environment(get_config(name, argument))
        except UsageError as error:
            if 'needs a package' not in str(error):
                raise
            pytest.skip(str(error))


@pytest.mark.parametrize('name', OWN)
def test_ppo_and_sizes(name):
    config = get_config(name, 'tiny,ppo,memory_size=20')
    assert checks.find_problems(config, 1) + settings.find_problems(config, 1) == []
    assert config.reinforcement.epochs == 4 and config.model.expire_span.max_span == 20
    fixed = get_config(name, 'tiny,memory=transformer_xl,memory_size=20').model.transformer_xl
    assert fixed.same_length and fixed.memory_length == 20
    for value in ('0', 'x'):
        with pytest.raises(UsageError, match='memory_size'):
            get_config(name, f'memory_size={value}')


def test_a_note_says_where_a_length_changes_nothing():
    said = 'memory_size=24 changes nothing: the size of infini does not follow from it'
    assert said in get_config('corridor', 'tiny,memory=infini,memory_size=24').notes
    for argument in ('memory=infini', 'memory_size=24', 'memory=infini+expire_span,memory_size=24'):
        assert not any('changes nothing' in note for note in get_config('corridor', argument).notes)


def test_full_sizes_have_the_shapes_of_their_states(tmp_path):
    config = get_config('portal')
    built = Built(config, experiment(config, tmp_path, 8).mesh)
    state = built.abstract_state
    assert state.lanes.observation.shape == (1024, 3, 3, 55)
    leaves = jax.tree.leaves(state.lanes)
    assert all(leaf.shape[0] == 1024 and len(leaf.sharding.spec) for leaf in leaves)
    assert np.prod(state.params['observed']['kernel'].shape) == 495 * 64
