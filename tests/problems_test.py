"""The rules for fields: one line per problem, with the value given and the values allowed."""

import math

import pytest

from longmem_jax import problems
from longmem_jax.errors import nearest

FIELDS = dict(size=0, share=1.0, kind='firts', ramp=3)


def test_each_rule_names_the_field_what_was_given_and_what_is_allowed():
    assert problems.at_least(FIELDS, 1, 'size', 'ramp') == ['size = 0: must be at least 1']
    assert problems.above(FIELDS, 0, 'size', 'share') == ['size = 0: must be above 0']
    endless = dict(size=math.inf)
    assert problems.above(endless, 0, 'size') == ['size = inf: must be above 0, and finite']
    assert problems.at_least(endless, 0, 'size') == ['size = inf: must be at least 0, and finite']
    assert problems.one_of(FIELDS, kind=('first', 'last'), ramp=(3,)) == [
        "kind = 'firts': did you mean 'first'? allowed are first, last"
    ]
    assert problems.between(FIELDS, 0, 1, 'size', 'share') == []
    assert problems.between(FIELDS, 0, 1, 'share', ends='[)') == [
        'share = 1.0: must lie between 0 and 1, excluding 1'
    ]
    assert problems.between(FIELDS, 0, 1, 'size', 'share', 'ramp', ends='(]') == [
        'size = 0: must lie between 0 and 1, excluding 0',
        'ramp = 3: must lie between 0 and 1, excluding 0',
    ]
    assert problems.under('config.model.x', ['size = 0: no']) == ['config.model.x.size = 0: no']


def test_what_a_float_of_32_bits_cannot_tell_from_a_limit_is_beyond_it():
    fields = dict(tiny=1e-50, nearly=0.99999999, huge=1e39, tenth=0.1)
    assert problems.above(fields, 0, 'tiny', 'huge') == [
        'tiny = 1e-50: must be above 0; as a float of 32 bits it is 0',
        'huge = 1e+39: must be above 0, and finite',
    ]
    assert problems.at_least(fields, 0, 'tiny', 'huge') == [
        'huge = 1e+39: must be at least 0, and finite'
    ]
    assert problems.between(fields, 0, 1, 'tiny', 'nearly') == []
    said = 'must lie between 0 and 1, excluding 0 and 1; as a float of 32 bits it is'
    assert problems.between(fields, 0, 1, 'tiny', 'nearly', ends='()') == [
        f'tiny = 1e-50: {said} 0',
        f'nearly = 0.99999999: {said} 1',
    ]
    assert problems.between(fields, 0.1, 1, 'tenth') == []
    assert len(problems.between(fields, 0.1, 1, 'tenth', ends='(]')) == 1


def test_what_is_not_a_number_is_refused_too():
    fields = dict(size=float('nan'))
    for found in (
        problems.at_least(fields, 1, 'size'),
        problems.above(fields, 0, 'size'),
        problems.between(fields, 0, 1, 'size'),
    ):
        assert len(found) == 1, 'write rules so that NaN breaks them: `not value >= least`'


NUMBERS = 'must be a tuple of numbers, such as (0.01, 0.05)'


@pytest.mark.parametrize(
    'given, message',
    [
        (dict(number='long'), "number: must be an int, got 'long'"),
        (dict(number=1.5), 'number: must be an int, got 1.5'),
        (dict(number=True), 'number: must be an int, got True'),
        (dict(number=-1), 'number = -1: must be at least 0'),
        (dict(rate='fast'), "rate: must be a float, got 'fast'"),
        (dict(rate=True), 'rate: must be a float, got True'),
        (dict(flag=1), 'flag: must be True or False, got 1'),
        (dict(name=3), 'name: must be text, got 3'),
        (dict(word='c'), "word = 'c': allowed are a, b"),
        (dict(size=9), 'size = 9: must lie between 1 and 4'),
        (dict(size='9'), "size: must be an int, got '9'"),
        (dict(share=-0.5), 'share = -0.5: must lie between 0.0 and 1.0'),
        (dict(many=('a',)), f"many = ('a',): {NUMBERS}"),
        (dict(many=(0.1, float('nan'))), f'many = (0.1, nan): {NUMBERS}'),
        (dict(many=(float('inf'),)), f'many = (inf,): {NUMBERS}'),
        (dict(many=5), f'many = 5: {NUMBERS}'),
        (dict(many=(True,)), f'many = (True,): {NUMBERS}'),
        (dict(widths=(1.5,)), 'widths = (1.5,): must be a tuple of ints from 0, such as (64, 32)'),
        (
            dict(widths=(4, -3)),
            'widths = (4, -3): must be a tuple of ints from 0, such as (64, 32)',
        ),
        (dict(many=(2**70,)), f'many = ({2**70},): {NUMBERS}'),
        (dict(words=('a', 1)), "words = ('a', 1): must be a tuple of words, such as ('a', 'b')"),
    ],
)
def test_fields_of_a_section(given, message):
    wanted = dict(
        number=int, rate='float', flag=bool, name=str, word=('a', 'b'), size=(1, 4),
        share=(0.0, 1.0), other=tuple, many=tuple[float, ...], widths=tuple[int, ...],
        words=tuple[str, ...], two=tuple[float, float], any=tuple[object, ...],
    )  # fmt: skip
    right = dict(
        number=0, rate=1, flag=False, name='', word='a', size=4, share=1, other='unchecked',
        many=(1, 0.5), widths=[], words=('a',), two='unchecked', any=5,
    )  # fmt: skip
    assert problems.of_section(right, wanted) == []
    assert problems.of_section(right | given, wanted) == [message]


@pytest.mark.parametrize(
    'given, allowed, near',
    [
        ('position', ('epsilon', 'rotary_base'), ''),  # five letters of each, in this order
        ('memory_lenght', ('memory', 'memory_length'), 'memory_length'),
        ('knn', ('cache', 'knn_lm'), 'knn_lm'),
        ('heads', ('head_dim', 'num_heads', 'num_kv_heads'), 'num_heads'),
        ('expired', ('kl', 'expire_span'), 'expire_span'),
        ('qvk', ('none', 'qkv', 'all'), 'qkv'),
        ('window_size', ('rule', 'window'), 'window'),
        ('layer_dropout', ('attention_dropout', 'dropout', 'rate'), 'dropout'),
        ('deltarule', ('delta', 'rule_of_all', 'full'), 'delta'),
        ('exponent', ('rate', 'exp', 'one'), ''),  # 'one' and 'exp' are too short
        ('', ('a', 'b'), ''),
        ('x', ('x_norm',), ''),
    ],
)
def test_a_hint_is_near(given, allowed, near):
    assert nearest(given, allowed) == (f'did you mean {near!r}? ' if near else '')


def test_missing_and_unknown_fields():
    found = problems.of_section(dict(memory_lenght=3), dict(memory_length=int))
    assert found == [
        "memory_lenght: not a field here, did you mean 'memory_length'? the fields are memory_length",
        'memory_length is missing',
    ]
