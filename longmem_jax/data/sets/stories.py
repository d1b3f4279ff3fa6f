"""Small generated stories in which the end needs what was said at the start.

A story tells of a child: its name, home, friend, favourite food, and a thing of some colour that is
lost. Some of these come again and again, others in each story. On the way the child meets animals,
which ask for them, and the last sentences have all of them again. Of colours alone there are others
between. A text is one line of words with blanks between all words and marks, as in WikiText, from about
220 words. The stories are ours, and of no paper. With `config.data.path` they are those of files, such
as TinyStories, instead.
"""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from longmem_jax.data.documents import SPLITS, Document, Source
from longmem_jax.data.sources import DataSource
from longmem_jax.data.text_files import TextFiles
from longmem_jax.problems import of_section

FIELDS = dict(documents=(1, 10**9), eval_documents=(1, 10**9))
MOST_EPISODES = 10_000
CHILDREN = {
    'girl': dict(she='she', her='her', name='Mia Lily Anna Sara Emma Rosa Nina Clara'),
    'boy': dict(she='he', her='his', name='Tom Ben Max Sam Jack Paul Leo Finn'),
}
FACTS = dict(
    name='',  # those of the child
    home='village castle valley harbour city tower island farm',
    colour='red blue green yellow white black pink grey',
    thing='kite ball hat boat drum lamp bell cup',
    friend='fox bear duck frog goat pig mouse pony',
    called='Spot Rex Coco Momo Pip Fluffy Biscuit Lulu',
    food='apples bread soup cake rice plums cheese honey',
)
WORDS = dict(
    animal='bird cat owl rabbit snake turtle cow hen',
    animals='birds cats owls rabbits snakes turtles cows hens',
    spot='tree river bridge rock wall gate pond cave',
    spots='trees rivers bridges rocks walls gates ponds caves',
    mood='happy sad tired angry sleepy busy quiet brave',
    ground='hill field road grass sand snow',
    many='two three four many some',
)
START = (
    'Once there was a little $child called $name .',
    '$She lived in the $home .',
    '$She had a $colour $thing , and $she loved it .',
    '$Her best friend was a $friend called $called .',
    'All days $she liked to eat $food .',
    'But one day it was gone , and $she went out to look for it .',
)
ON_THE_WAY = (
    '$She walked over the @ground for a long time .',
    'The @animal near the @spots was @mood .',
    'The @animals near the @spot were @mood .',
    'There were @many @animals behind the @spot .',
    'A @colour @animal was on the @spot , and it was @mood .',
    '$She sat down by the @spot and took off $her shoes .',
    'It was cold there , so the $child sang to @herself and ran on .',
    '" Good day , " said $she , but the @animal did not hear it .',
)
OFTEN = (
    'Over the @ground ran $name .',
    '$She thought of the $colour $thing .',
    'How far away the $home was !',
    'After the $child came the $friend .',
    'Near the $child ran $called .',
    'Then it was time for some $food .',
)
QUESTIONS = (
    'Who are you ? I am $name .',
    'What do you look for ? My $colour $thing .',
    'Where do you live ? In the $home .',
    'Who is your friend ? It is a $friend called $called .',
    'What do you like ? I like $food .',
)
END = (
    'At last $name came back to the $home .',
    'And there was the $colour $thing !',
    'It was with the $friend called $called all the time .',
    'They ate $food , and all were happy .',
)


class Story(NamedTuple):
    """A story.

    Attributes:
      words: of the text, marks included.
      facts: for every word the fact of `FACTS` that it repeats, '' for most.
      others: for every repeated word one of the same kind that would be wrong, '' for the rest.
    """

    words: tuple[str, ...]
    facts: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def text(self) -> str:
        """The words in a line."""
        return ' '.join(self.words)


def _capital(word: str) -> str:
    return word[0].upper() + word[1:]


def write(draw: random.Random, episodes: tuple[int, int]) -> Story:
    """Writes a story; `episodes`: the fewest and the most questions."""
    child, own = draw.choice(list(CHILDREN.items()))
    lists = {name: (words or own[name]).split() for name, words in FACTS.items()}
    facts = {name: draw.choice(words) for name, words in lists.items()}
    known = facts | {'child': child, 'she': own['she'], 'her': own['her']}
    known |= {_capital(name): _capital(known[name]) for name in ('she', 'her')}
    chances = {name: words.split() for name, words in WORDS.items()}
    chances |= {'colour': lists['colour'], 'herself': ['herself' if child == 'girl' else 'himself']}
    sentences = list(START)
    often = draw.sample(OFTEN, 2)
    for _ in range(draw.randint(*episodes)):
        for _ in range(draw.randint(0, 2)):
            sentences.append(draw.choice(often if draw.random() < 0.5 else ON_THE_WAY))
        sentences += ['The @animal asked :', draw.choice(QUESTIONS)]
    words, repeated, others, told = [], [], [], set[str]()
    for part in ' '.join([*sentences, *END]).split():
        mark, name = part[0], part[1:]
        word = known[name] if mark == '$' else draw.choice(chances[name]) if mark == '@' else part
        again = mark == '$' and name in told
        words.append(word)
        repeated.append(name if again else '')
        others.append(draw.choice([w for w in lists[name] if w != word]) if again else '')
        if mark == '$' and name in facts:
            told.add(name)
    return Story(tuple(words), tuple(repeated), tuple(others))


def pairs(draw: random.Random, kind: str) -> tuple[str, str]:
    """A right text and a wrong one, which differ in a word, in the manner of BLiMP.

    Args:
      kind: 'number', the second sentence has a subject and its verb, with a noun of the other number
        between them; 'gender', it begins with the pronoun of the child in the first.
    """
    child, other = draw.sample(list(CHILDREN), 2)
    name = draw.choice(CHILDREN[child]['name'].split())
    start = f'Once there was a little {child} called {name} .'
    if kind == 'number':
        one, many = draw.choice([('animal', 'spots'), ('animals', 'spot')])
        nouns = [draw.choice(WORDS[name].split()) for name in (one, many)]
        start += f' The {nouns[0]} near the {nouns[1]}'
        words = ('was', 'were') if one == 'animal' else ('were', 'was')
        end = f'{draw.choice(WORDS["mood"].split())} .'
    else:
        words = (_capital(CHILDREN[child]['she']), _capital(CHILDREN[other]['she']))
        end = f'lived in the {draw.choice(FACTS["home"].split())} .'
    right, wrong = (f'{start} {word} {end}' for word in words)
    return right, wrong


class Stories(Sequence[Any]):
    """The stories of a split, each from the seed, the split and its index."""

    def __init__(self, data: Any, split: str):
        """Writes nothing yet."""
        settings = data.task
        self._count = settings.documents if split == 'train' else settings.eval_documents
        self._episodes, self._key = tuple(settings.episodes), (data.seed, SPLITS.index(split))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Document:  # type: ignore[override]  # no slices
        return Document(f'story {index}', f'{self.story(index).text}\n'.encode())

    def story(self, index: int) -> Story:
        """A story with its facts."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        return write(random.Random(str((*self._key, index))), self._episodes)


def texts(data: Any, split: str) -> Source:
    """Generated stories, or those of files."""
    if not data.path:
        return Stories(data, split)
    return TextFiles(data.path, split, data.documents, tuple(data.fractions), data.text_field)


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`."""
    problems = of_section({n: settings[n] for n in settings if n != 'episodes'}, FIELDS)
    episodes = settings.get('episodes')
    known = isinstance(episodes, Sequence) and all(type(n) is int for n in episodes)
    if not known or len(episodes) != 2 or not 0 <= episodes[0] <= episodes[1] <= MOST_EPISODES:
        problems.append(
            f'episodes = {episodes}: must be the fewest and the most of a story, at most '
            f'{MOST_EPISODES:,}, such as (1, 18)'
        )
    return problems


SOURCE = DataSource(texts, check=check)
