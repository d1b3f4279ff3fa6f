"""CMU-DoG: conversations with their documents from the original files, and what is refused."""

import json

import numpy as np
import pytest

from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.data import load
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.hosts.data.cmu_dog import read

MOVIE = {
    '0': {
        'movieName': 'Jaws', 'year': '1975', 'genre': 'Thriller', 'director': 'S. S.',
        'rating': ['97%', ' 8/10 '], 'cast': ['R. S. as Brody'], 'introduction': 'A  shark.',
        'critical_response': ['Good.'],
    },
    '1': 'They swim.', '2': 'It bites.', '3': 'The end.', 'wikiDocumentIdx': 4,
}  # fmt: skip
SAID = [('user1', 'hi\nthere'), ('user2', 'yes'), ('user2', ' '), ('user1', 'bye')]
DOCUMENT = (
    'movieName: Jaws\nyear: 1975\ngenre: Thriller\ndirector: S. S.\nrating: 97%; 8/10\n'
    'cast: R. S. as Brody\nintroduction: A shark.\ncritical_response: Good.\n'
    'They swim.\nIt bites.\nThe end.'
)
TALK = 'A: hi there\nB: yes\nA: bye\n'


def dialogue(*said, movie=4):
    history = [{'uid': uid, 'text': text, 'docIdx': 0} for uid, text in said]
    return {'history': history, 'wikiDocumentIdx': movie, 'rating': 2}


def write(path, movie=MOVIE, **dialogues):
    """Files of the original layout; `dialogues`: 'SPLIT_NAME' to a conversation."""
    (path / 'WikiData').mkdir(exist_ok=True)
    (path / 'WikiData' / 'Jaws.json').write_text(json.dumps(movie))
    for split in ('train', 'valid', 'test'):
        (path / 'Conversations' / split).mkdir(parents=True, exist_ok=True)
    for name, content in dialogues.items():
        split, _, name = name.partition('_')
        text = content if isinstance(content, str) else json.dumps(content)
        (path / 'Conversations' / split / f'{name}.json').write_text(text)


def config_of(path, **task):
    config = base()
    config.data.source, config.data.path = 'cmu_dog', str(path)
    config.data.task = (
        dict(
            document='before', train_on_document=True, respond=False, min_history=2, max_dialogues=0
        )
        | task
    )
    return config


def scored_text(document):
    return bytes(document.tokens[document.scored > 0].tolist()).decode()


def test_the_document_comes_first_and_utterances_are_scored(tmp_path):
    write(tmp_path, test_a=dialogue(*SAID), train_b=dialogue(*SAID[:2]))
    config = config_of(tmp_path)
    assert checks.find_problems(config, 1) == []
    (document,) = load.load(config.data, 'test', Bytes())
    assert bytes(document.tokens.tolist()).decode() == f'{DOCUMENT}\n{TALK}'
    assert scored_text(document) == ' hi there\n yes\n bye\n'
    assert document.num_bytes == len(' hi there\n yes\n bye\n')
    (training,) = load.load(config.data, 'train', Bytes())
    assert scored_text(training) == f'{DOCUMENT}\nA: hi there\nB: yes\n'
    config.data.task.train_on_document = False
    assert scored_text(load.load(config.data, 'train', Bytes())[0]) == ' hi there\n yes\n'


def test_without_the_document_only_the_talk_is_read(tmp_path):
    write(tmp_path, valid_a=dialogue(*SAID))
    config = config_of(tmp_path, document='none')
    (document,) = load.load(config.data, 'validation', Bytes())
    assert bytes(document.tokens.tolist()).decode() == TALK
    assert np.flatnonzero(document.scored)[0] == 2


def test_training_has_no_conversation_of_another_split(tmp_path):
    same, other = dialogue(*SAID), dialogue(*SAID[:1])
    write(tmp_path, train_a=same, train_b=other, test_c=same, valid_d=dialogue(*SAID[:2]))
    assert [each.name for each in read(str(tmp_path), 'train')] == ['b']
    assert [each.name for each in read(str(tmp_path), 'test')] == ['c']


@pytest.mark.parametrize(
    'content, message',
    [
        ('{"history": ', 'not JSON'),
        ({'history': []}, "no field 'wikiDocumentIdx'"),
        (dialogue(*SAID, movie=7), 'wikiDocumentIdx = 7: no such movie in WikiData/, it has 1'),
        (dialogue(('user3', 'hi')), "utterance 0: uid = 'user3': allowed are user1, user2"),
        ({'history': [{'uid': 'user1'}], 'wikiDocumentIdx': 4}, "utterance 0: no field 'text'"),
    ],
)
def test_other_conversations_are_one_clear_error(tmp_path, content, message):
    write(tmp_path, test_a=content)
    with pytest.raises(UsageError, match=message):
        read(str(tmp_path), 'test')


def test_other_movies_and_no_files_are_one_clear_error(tmp_path):
    with pytest.raises(UsageError, match=r'no Conversations/test/\*.json; give the folder'):
        read(str(tmp_path), 'test')
    facts = {name: value for name, value in MOVIE['0'].items() if name != 'cast'}
    write(tmp_path, movie=MOVIE | {'0': facts}, test_a=dialogue(*SAID))
    with pytest.raises(UsageError, match="section 0: no field 'cast'"):
        read(str(tmp_path), 'test')


def test_problems_of_the_task(tmp_path):
    problems = checks.find_problems(config_of(tmp_path, document='after', min_history=0), 1)
    assert len(problems) == 2 and all('config.data.task.' in problem for problem in problems)
