"""JSON of others: limits, and checks of what is in it."""

import json
import math
import os

import pytest

from longmem_jax.errors import UsageError
from longmem_jax.untrusted import json_file, schema

EACH = schema.fields(
    {'count': schema.whole(0, 9), 'name': schema.text('[a-z]+', 'small letters')},
    {
        'share': schema.number(0, 1),
        'on': schema.flag,
        'kind': schema.one_of('a', 1),
        'list': schema.items(schema.whole(0, 3), 1, 2),
        'map': schema.named(schema.either(schema.one_of(None), schema.text())),
        'any': schema.anything,
    },
)
RIGHT = dict(count=1, name='ab')


@pytest.mark.parametrize(
    'content, message',
    [
        (b'', 'not JSON'),
        (b'[' * 200_000, 'more than 64 levels'),
        (b'{"a":' * 200_000, 'more than 64 levels'),
        (b'[' * 65 + b']' * 65, 'more than 64 levels'),
        (b'{"a": 1, "b": 2, "a": 1}', "'a' is there twice"),
        (b'["\\ud800"]', 'surrogates not allowed'),
        (b'{"\\udfff": 1}', 'surrogates not allowed'),
        (b'"\xed\xa0\x80"', 'not JSON in UTF-8'),
        ('{"a": 1}'.encode('utf-16'), 'not JSON in UTF-8'),
        (b'1' * 5000, 'not JSON'),
        (b'{} x', 'not JSON'),
    ],
)
def test_what_is_not_read(content, message, tmp_path):
    (tmp_path / 'file.json').write_bytes(content)
    with pytest.raises(UsageError, match=f'file.json: .*{message}'):
        json_file.read(tmp_path / 'file.json')


def test_what_is_read(tmp_path):
    for value in (
        {'a': [1, 2.5, None, True, '\u2603\U0001f642']},
        [],
        'x',
        json.loads('[' * 64 + ']' * 64),
    ):
        (tmp_path / 'f').write_text(json.dumps(value))
        assert json_file.read(tmp_path / 'f') == value
    (tmp_path / 'f').write_bytes(b'\xef\xbb\xbf"\\ud83d\\ude42"')  # a mark of its order, and a pair
    assert json_file.read(tmp_path / 'f') == '\U0001f642'


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    (tmp_path / 'large').write_bytes(b' ' * 99 + b'1')
    assert json_file.read(tmp_path / 'large', largest=100) == 1
    with pytest.raises(UsageError, match='more than 99 bytes'):
        json_file.read(tmp_path / 'large', largest=99)
    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'link').symlink_to('/dev/zero')
    for name in ('pipe', 'link', '.'):
        with pytest.raises(UsageError, match='not a regular file'):
            json_file.read(tmp_path / name)
    for name in ('none', 'a\0b', 'x' * 999):
        with pytest.raises(UsageError, match='where: cannot be read'):
            json_file.read(tmp_path / name, 'where')


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(count=10), 'count = 10: must be a whole number from 0 to 9'),
        (dict(count=True), 'count = True'),
        (dict(count=1.0), 'count = 1.0'),
        (dict(name='A'), "name = 'A': must be small letters"),
        (dict(name='a\n'), 'name = '),
        (dict(share=math.nan), 'share = nan'),
        (dict(share=10**400), 'share = 1000'),
        (dict(share=False), 'share = False'),
        (dict(on=1), 'on = 1'),
        (dict(kind=True), "kind = True: must be 'a' or 1"),
        (dict(list=[]), r'list = \[\]: must be a list of 1 to 2 items'),
        (dict(list=[1, 4]), r'list\[1\] = 4'),
        (dict(map=dict(a=None, b=3)), 'map.b = 3: must be text'),
        (dict(map=[]), r'map = \[\]: must be an object'),
        (dict(map={'\x1b': 3}), r'map.\\x1b = 3'),
        (dict(other=1), 'other is not a name here'),
        ({'\x1b[2J': 1}, r'\\x1b\[2J is not a name here'),
        (dict(name='\x1b'), r"name = '\\x1b'"),
    ],
)
def test_the_first_problem_is_named_with_its_place(changes, message):
    schema.require(RIGHT, EACH, 'FILE')
    with pytest.raises(UsageError, match=f'^FILE: {message}'):
        schema.require(RIGHT | changes, EACH, 'FILE')


def test_a_message_is_short_whatever_is_in_the_file():
    for value in ('x' * 10**6, ['x' * 10**6] * 100, {'x' * 10**6: 1}, 10**4000):
        assert len(schema.shown(value)) < 200
