"""Every config builds and is runnable, and every fault has one clear line."""

import importlib.util
from pathlib import Path

import jax
import pytest

from longmem_jax import checks
from longmem_jax.config import base
from longmem_jax.errors import UsageError
from longmem_jax.models.language_model import make_model
from longmem_jax.train_step import initial_parameters

FILES = sorted((Path(__file__).parent.parent / 'configs').glob('[a-z]*.py'))


def get_config(path, argument=''):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert f'--config=configs/{path.name}' in module.__doc__
    return module.get_config(argument)


@pytest.mark.parametrize('argument', ['', 'tiny'])
@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_config_is_runnable(path, argument):
    config = get_config(path, argument)
    assert checks.find_faults(config, num_devices=4 if not argument else 1) == []
    for model, length in (
        (config.model, config.train.segment_length),
        (checks.evaluation_model(config), config.evaluate.segment_length),
    ):
        shapes = jax.eval_shape(
            lambda m=model, n=length: initial_parameters(make_model(m, n), jax.random.key(0))
        )
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) > 10_000
    assert set(config) == set(base())


def parameters(path, argument=''):
    config = get_config(path, argument)
    model = make_model(config.model, config.train.segment_length)
    shapes = jax.eval_shape(lambda: initial_parameters(model, jax.random.key(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_sizes_are_the_papers():
    """Published: 41 M (enwik8, 12 layers) and 151 M (WikiText-103, 16 layers)."""
    sizes = {path.stem: parameters(path) for path in FILES}
    assert 40e6 < sizes['enwik8'] < 42e6
    assert 150e6 < sizes['wikitext103'] < 153e6
    assert 1e6 < sizes['quickstart'] < 2e6


def test_unknown_variant_lists_the_known():
    with pytest.raises(UsageError, match="did you mean 'tiny'"):
        get_config(FILES[0], 'tinny')


def change(config, path, value):
    *sections, name = path.split('.')
    for section in sections:
        config = config[section]
    with config.unlocked(), config.ignore_type():
        config[name] = value


@pytest.mark.parametrize(
    'path, value, message',
    [
        ('model.attention', ('transformer_lx',) * 2, "did you mean 'transformer_xl'"),
        ('model.attention', ('transformer_xl',), '2 names are needed, one per layer'),
        ('model.feed_forward', ('dense', 'sparse'), 'allowed are dense'),
        ('model.num_heads', 3, 'must be a multiple of config.mesh.tensor = 2'),
        ('model.vocab_size', 257, 'vocabulary may be larger'),
        ('model.norm', 'batchnorm', 'layernorm, rmsnorm'),
        ('model.position', 'absolute', 'none, sinusoidal, learned'),
        ('model.dropout', 1.0, r'must lie in \[0, 1\)'),
        ('model.dtype', 'float16', 'bfloat16'),
        ('model.cutoffs', (100, 50), 'must rise'),
        ('model.tie_projections', (), '1 booleans are needed'),
        ('model.transformer_xl.memory_length', -4, 'must not be negative'),
        ('model.transformer_xl.memory_length', 'long', 'a int is needed'),
        ('model.transformer_xl.position', 'rotery', "did you mean 'rotary'"),
        ('model.transformer_xl.memory_lenght', 5, "did you mean 'memory_length'"),
        ('model.dense.activation', 'tanh', 'relu, gelu, swiglu, geglu'),
        ('train.num_lanes', 3, 'must be a multiple of 4'),
        ('train.segment_length', 0, 'must be above 0'),
        ('mesh.data', 3, 'the product must be 8'),
        ('mesh.data', -2, 'the product must be 8'),
    ],
)
def test_faults_say_what_is_allowed(path, value, message):
    config = base()
    config.model.vocab_size = 264
    config.mesh = dict(data=2, fsdp=2, tensor=2)
    assert checks.find_faults(config, 8) == []
    change(config, path, value)
    with pytest.raises(UsageError, match=message):
        checks.require_runnable(config, 8)


def test_all_faults_come_at_once():
    config = base()
    config.model.attention = ('a', 'b')
    config.model.dropout = -1.0
    config.train.num_steps = 0
    with pytest.raises(UsageError, match='4 problems') as caught:
        checks.require_runnable(config, 1)
    assert 'num_steps' in str(caught.value) and 'dropout' in str(caught.value)


def test_settings_that_would_be_ignored_are_faults():
    config = base()
    config.optimizer.weight_decay, config.optimizer.momentum = 0.1, 0.9
    with pytest.raises(UsageError, match="'adam' has none; use 'adamw'(.|\n)*belongs to 'sgd'"):
        checks.require_runnable(config, 1)


def test_overrides_of_evaluation_are_checked():
    config = base()
    config.evaluate.model = dict(transformer_xl=dict(memory_length=9))
    assert checks.evaluation_model(config).transformer_xl.memory_length == 9
    assert config.model.transformer_xl.memory_length == 128
    config.evaluate.model = dict(transformer_xl=dict(memory=9))
    with pytest.raises(UsageError, match='config.evaluate.model.transformer_xl'):
        checks.evaluation_model(config)
