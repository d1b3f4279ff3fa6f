"""Layers by pattern: the recipes of several memories in one model."""

import importlib

import pytest

from longmem_jax.config import checks
from longmem_jax.config.hybrids import names_of
from longmem_jax.config.recipes import section
from longmem_jax.errors import UsageError


def config_of(argument, name='quickstart'):
    config = importlib.import_module(f'configs.{name}').get_config(argument)
    assert [
        problem for problem in checks.find_problems(config, 1) if 'config.model' in problem
    ] == []
    return config


def test_a_pattern_is_repeated_to_the_depth_of_the_model():
    assert names_of('3*linear+full') == ('linear',) * 3 + ('full',)
    config = config_of('memory=linear+local', 'wikitext103')
    assert config.model.attention == ('linear', 'local') * 8 and config.model.num_layers == 16
    assert not config.model.around


def test_recipes_are_joined():
    model = config_of('memory=infini+2*compressive+product_key').model
    config = config_of('memory=infini+2*compressive+product_key')
    assert model.attention == ('infini', 'compressive', 'compressive', 'transformer_xl')
    assert model.feed_forward == ('dense', 'dense', 'dense', 'product_key')
    assert config.train.loss_weights.to_dict() == {'compression': 1.0}
    assert {pattern for pattern, *_ in config.optimizer.groups} == {
        'attention/gate$',
        'feed_forward/values$',
    }
    alone = config_of('memory=infini').model
    assert model.infini.to_dict() == alone.infini.to_dict()
    assert all(name in model for name in ('compressive', 'product_key', 'transformer_xl'))


def test_what_a_config_changes_in_a_recipe_is_in_the_hybrid():
    config = config_of('tiny,memory=expire_span+transformer_xl,memory_size=40', 'corridor')
    assert config.model.expire_span.max_span == config.model.transformer_xl.memory_length == 40
    assert 'expire_span' in config.train.loss_weights


@pytest.mark.parametrize('memory', ['recurrent', 'memformer'])
def test_what_stands_around_stands_around_all_layers(memory):
    model = config_of(f'memory={memory}+3*linear').model
    assert model.attention[1:] == ('linear',) * 3 and len(set(model.around)) == 1
    assert len(model.around) == 4


@pytest.mark.parametrize(
    'memory, message',
    [
        ('rfa+linear', "linear.features would be 'rfa' for rfa and 'elu' for linear"),
        ('recurrent+memformer', 'only one memory can stand around all blocks'),
        ('linaer+full', "did you mean 'linear'"),
        ('0*linear+full', 'names joined by [+], each with a number'),
        ('linear+', 'names joined by'),
        ('²*linear+full', 'names joined by'),
        (
            '4*linear+full',
            r'memory=4\*linear\+full: is .* of 5 layers, .* so full would be in none',
        ),
    ],
)
def test_what_cannot_be_joined_is_one_message(memory, message):
    with pytest.raises(UsageError, match=message):
        config_of(f'memory={memory}')


def test_a_host_gets_one_memory():
    with pytest.raises(UsageError, match='a host gets one memory; layers=0-5'):
        config_of('tiny,memory=linear+infini', 'host')


def test_a_memory_without_its_section_says_how_to_set_it():
    config = importlib.import_module('configs.quickstart').get_config('tiny')
    config.model.attention, config.model.beside = ('infini',) * 2, ('linear', '')
    linear, infini = (
        next(p for p in checks.find_problems(config, 1) if p.startswith(f'config.model.{name} is'))
        for name in ('linear', 'infini')
    )
    assert linear.endswith("config.model.linear = longmem_jax.config.recipes.section('linear')")
    assert infini.endswith('in all layers: --config=NAME:memory=infini')
    config.model.linear, config.model.infini = section('linear'), section('infini')
    assert not [p for p in checks.find_problems(config, 1) if 'is missing' in p]
