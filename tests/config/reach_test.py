"""What is said where no layer can read as far back as the task asks."""

import jax
import pytest

from configs import babilong, copy, leaderboard, quickstart, recall, ruler
from longmem_jax.commands.train import LanguageModelTask
from longmem_jax.config.reach import beyond_a_step, too_short
from longmem_jax.config.recipes import recipes
from longmem_jax.devices import sharding
from longmem_jax.experiment import Experiment


def test_the_recipes_reach_the_small_recall_task():
    short = {name for name in recipes() if too_short(recall.get_config(f'tiny,memory={name}'))}
    assert short == {'local', 'normalized_xl', 'product_key_short'}  # they have no such memory


@pytest.mark.parametrize(
    'memory, fields, words',
    [
        (
            'transformer_xl',
            dict(memory_length=100),
            ('up to 256 back', 'transformer_xl 100, transformer_xl 100', 'farther back than 100',
             'beyond 200 not'),
        ),
        ('expire_span', dict(max_span=128, ramp=8), ('up to 256 back', 'farther back than 136')),
        ('expire_span', dict(max_span=512, limit=64, ramp=8), ('farther back than 72',)),
        ('compressive', dict(memory_length=64, compressed_length=16), ('farther back than 128',)),
        ('memorizing', dict(memory_size=128), ('memorizing 128, normalized_xl 32',)),
        (
            'infinity_former',
            dict(tau=0.5),  # 4.3 writes of 32 tokens leave .05
            ('infinity_former 138', 'farther back than 138', 'beyond 276 not'),
        ),
        ('local', {}, ('farther back than 0 cannot be known',)),
    ],
)  # fmt: skip
def test_says_how_far_every_layer_reads(memory, fields, words):
    config = recall.get_config(f'tiny,memory={memory}')
    config.model[memory].update(fields)
    (text,) = too_short(config)
    for word in words:
        assert word in text
    config.data.task.distances = (16, 32)
    assert bool(too_short(config)) == (memory == 'local')


def test_only_where_the_task_has_a_distance_and_the_memory_a_limit():
    assert too_short(quickstart.get_config()) == []
    assert too_short(recall.get_config('tiny,memory=infini')) == []
    assert too_short(copy.get_config('tiny,memory=expire_span')) == []
    (text,) = too_short(copy.get_config('tiny,memory=transformer_xl'))
    assert 'up to 192 back' in text and 'farther back than 64' in text


def test_pairs_are_asked_for_as_far_back_as_documents_are_long():
    (text,) = too_short(leaderboard.get_config('tiny,task=mqar,memory=normalized_xl'))
    assert 'up to 126 back' in text and 'farther back than 32' in text
    assert too_short(leaderboard.get_config('tiny,task=mqar,memory=transformer_xl')) == []


def test_a_note_says_that_gradients_end_before_what_is_asked_for():
    for get_config in (babilong.get_config, ruler.get_config):
        for argument in ('memory=infini', 'tiny,memory=infini'):
            config = get_config(argument)
            assert beyond_a_step(config) == [], 'a step of a recipe sees whole documents'
            config.train.segments_per_step = 1
            (text,) = beyond_a_step(config)
            assert f'up to {max(config.data.task.lengths):,} back' in text
            assert f'has {config.train.segment_length:,} tokens per lane' in text
    assert beyond_a_step(recall.get_config('tiny,memory=transformer_xl')) == [], (
        'a window keeps all'
    )
    assert len(beyond_a_step(recall.get_config('tiny,memory=infini'))) == 1
    assert beyond_a_step(quickstart.get_config()) == [], 'how far a text asks is not known'


@pytest.mark.parametrize(
    'memory, fields',
    [
        ('transformer_xl', dict(memory_length=100)),
        pytest.param('infinity_former', dict(tau=0.5), marks=pytest.mark.slow),
    ],
)
def test_training_begins_with_the_warning(tmp_path, memory, fields):
    config = recall.get_config(f'tiny,memory={memory}')
    config.model[memory].update(fields)
    said = []

    class Progress:
        say = staticmethod(said.append)

    mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, memory=1), jax.devices()[:1])
    LanguageModelTask(Experiment(config, tmp_path, mesh), None, Progress()).begin(1)
    assert any(line.startswith('Warning: ') and 'up to 256 back' in line for line in said)
