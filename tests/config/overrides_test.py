"""`--config.x.y=VALUE`: the values set, and one clear message for every mistake."""

import pytest

from configs import quickstart
from longmem_jax.config import checks, overrides
from longmem_jax.errors import UsageError


def overridden(*arguments):
    """The tiny quickstart with the overrides of a command line."""
    config = quickstart.get_config('tiny')
    config.lock()
    rest, given = overrides.split_arguments(['main', *arguments])
    assert rest == ['main'], rest
    overrides.apply(config, given)
    return config


def test_arguments_are_split():
    argv = ['main', '--config=a.py:tiny', '--config.a.b=1=2', '-config.c', '3', '--mode=train',
            '--config.d', '--noconfig.e', '--config.f', '-1', '--', '--config.g=1']  # fmt: skip
    assert overrides.split_arguments(argv) == (
        ['main', '--config=a.py:tiny', '--mode=train', '--', '--config.g=1'],
        [('a.b', '1=2'), ('c', '3'), ('d', 'true'), ('e', 'false'), ('f', '-1')],
    )


def test_every_type_is_read():
    config = overridden(
        '--config.train.num_steps=7', '--config.train.num_steps=8', '--config.train.remat',
        '--noconfig.model.pre_norm', '--config.optimizer.learning_rate=3e-4',
        '--config.model.dropout=0', '--config.data.path=a=b, c', '--config.model.cutoffs=(5, 9)',
        '--config.model.attention=local,transformer_xl', "--config.model.feed_forward=('dense',)",
        "--config.generate={'length': 5, 'top_p': 0.5}",
        '--config.optimizer.groups=(("bias", 1.0, 0.0),)',
    )  # fmt: skip
    assert config.train.num_steps == 8, 'the last of several wins'
    assert config.train.remat is True and config.model.pre_norm is False
    assert config.optimizer.learning_rate == 3e-4
    assert config.model.dropout == 0.0 and isinstance(config.model.dropout, float)
    assert config.data.path == 'a=b, c' and config.model.cutoffs == (5, 9)
    assert config.model.attention == ('local', 'transformer_xl')
    assert config.model.feed_forward == ('dense',)
    assert config.generate.length == 5 and config.generate.top_p == 0.5
    assert config.optimizer.groups == (('bias', 1.0, 0.0),)
    assert config.is_locked and config.evaluate.model.is_locked


def test_the_number_of_layers_changes_as_the_message_says():
    one = overridden('--config.model.num_layers=1')
    attention, feed_forward = checks.find_problems(one, 1)
    advice = [problem.rpartition('such as ')[2] for problem in (attention, feed_forward)]
    assert advice == [
        '--config.model.attention=transformer_xl,',
        '--config.model.feed_forward=dense,',
    ]
    assert checks.find_problems(overridden('--config.model.num_layers=1', *advice), 1) == []


def test_evaluation_may_override_every_field_of_the_model():
    config = overridden(
        '--config.evaluate.model.transformer_xl.memory_length=256',
        '--config.evaluate.model.transformer_xl.same_length=true',
        '--config.evaluate.model.dtype=bfloat16',
    )
    assert config.evaluate.model.to_dict() == dict(
        transformer_xl=dict(memory_length=256, same_length=True), dtype='bfloat16'
    )
    assert checks.find_problems(config, 1) == []
    assert checks.evaluation_model(config).transformer_xl.memory_length == 256
    assert config.model.transformer_xl.memory_length != 256
    whole = overridden("--config.evaluate.model={'transformer_xl': {'memory_length': 256}}")
    assert whole.evaluate.model.to_dict() == dict(transformer_xl=dict(memory_length=256))


def test_a_loss_weight_that_the_config_lacks_can_be_set():
    config = overridden('--config.train.loss_weights.expire_span=1e-6')
    assert config.train.loss_weights.expire_span == 1e-6
    (problem,) = checks.find_problems(config, 1)
    assert 'config.train.loss_weights.expire_span = 1e-06: not a loss of this model' in problem


def test_notes_end_with_what_they_explain():
    def notes(*arguments):
        config = quickstart.get_config('tiny')
        config.notes = (
            "infini: position = 't5': 'rotary' rotates pairs, and head_dim = 41 is odd",
            'compressive: rate = 2: 4 does not divide segment_length = 30',
            'a word without values',
        )
        config.model.head_dim, config.train.segment_length = 41, 30
        config.model.infini = dict(position='t5')
        config.model.compressive = dict(rate=2)
        overrides.apply(config, overrides.split_arguments(arguments)[1])
        return [note.partition(':')[0] for note in config.notes]

    everything = ['infini', 'compressive', 'a word without values']
    assert notes() == notes('--config.train.num_steps=3') == everything
    for argument in ('--config.model.head_dim=40', '--config.model.infini.position=rotary'):
        assert notes(argument) == everything[1:], argument
    for argument in (
        '--config.model.compressive.rate=4',
        '--config.train.segment_length=32',
    ):
        assert notes(argument) == [everything[0], everything[2]], argument


def test_any_config_can_read_another_source():
    config = overridden('--config.data.source=superglue', "--config.data.task={'name': 'CB'}")
    assert config.data.task.to_dict() == {'name': 'CB'} and not checks.find_problems(config, 1)
    config = overridden('--config.data.source=superglue', "--config.data.task={'nam': 'CB'}")
    assert any("did you mean 'name'" in problem for problem in checks.find_problems(config, 1))


@pytest.mark.parametrize(
    'argument, parts',
    [
        ('--config.model.d_modl=3', ["config.model has no field 'd_modl'", "did you mean 'd_model'"]),
        ('--config.trian.num_steps=3', ["config has no field 'trian'", "did you mean 'train'"]),
        ('--config.train.num_step=3', ["did you mean 'num_steps'"]),
        ('--config.model.transformer_xl.memory_lenght=3', ["did you mean 'memory_length'"]),
        ('--config.evaluate.model.transformer_xl.memory_lenght=3', ["did you mean 'memory_length'"]),
        ('--config.evaluate.model.foo=3', ["config.model has no field 'foo'", 'attention']),
        ('--config.evaluate.model.infini.rule=delta', [':memory=infini']),
        ('--config.model.infini.rule=delta', ["does not use 'infini'", ':memory=infini']),
        ('--config.data.task.kind=needles',
         ["data.task has no fields in this config, so no 'kind'", 'all fields at once']),
        ('--config.data.task.name=x',
         ["no fields in this config, so no 'name'; there is config.data.name, config.optimizer.name; "
          'take a config of the task']),
        ('--config.train.num_steps=many', ['--config.train.num_steps', "an int, such as", "'many'"]),
        ('--config.train.num_steps=1.5', ["got '1.5'"]),
        ('--config.optimizer.learning_rate=high', ['must be a float', "got 'high'"]),
        ('--config.train.loss_weights.kl=high', ['must be a float', "got 'high'"]),
        ('--config.optimizer.learning_rate=nan', ['not a number that a field can have', "'nan'"]),
        ('--config.train.num_steps=9223372036854775808', ['not a number that a field can have']),
        ('--config.train.remat=maybe', ['must be true or false', "got 'maybe'"]),
        ('--config.model.attention=local', ['must be a tuple', "('transformer_xl','transformer_xl')"]),
        ("--config.notes=(1,)", ['every note is a text']),
        ('--config.model.cutoffs=5', ['must be a tuple', "got '5'"]),
        ('--config.model=3', ['a section', '--config.model.around=']),
        ('--config.train.num_steps.x=3', ['config.train.num_steps = 20', 'no fields']),
        ('--config.model.segment_length=8',
         ["no field 'segment_length'; there is config.evaluate.segment_length, config.train."]),
        ('--config.training.num_steps=3', ["no field 'training'; there is config.train.num_steps; "]),
        ('--config.model.memory_length=3', ['there is config.model.transformer_xl.memory_length; ']),
        ('--config.=3', ['config has no field']),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_one_message(argument, parts):
    with pytest.raises(UsageError) as caught:
        overridden(argument)
    message = str(caught.value)
    assert argument.partition('=')[0] in message and '\n' not in message, message
    for part in parts:
        assert part in message, f'{part!r} is missing in: {message}'
