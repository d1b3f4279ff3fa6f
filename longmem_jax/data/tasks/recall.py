"""Recall tasks: passkey, needles, associative recall and copy, at chosen distances.

A document gives one or more keys, continues with filler, and asks for one of them; only the answer is
scored. The distance is the number of tokens between the end of that key and the question:
- passkey: one key of several digits in filler (Mohtashami and Jaggi, 2023, without their prose);
- needles: several named keys in the filler, one is asked for (Kamradt, 2023; Hsieh et al., 2024);
- associative: named values one after another, then filler, one is asked for (Arora et al., 2024);
- copy: a string, filler, the string again.

With `ask_every`, the filler after a passkey also has questions, which are not answered: the key is
looked for again and again, but never repeated.
"""

from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.tasks.drawn import Drawn
from longmem_jax.data.tasks.vocabulary import Vocabulary
from longmem_jax.problems import of_series

KINDS = ('passkey', 'needles', 'copy', 'associative')
SPREADS = ('even', 'log')
FIELDS = dict(
    kind=KINDS,
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    num_pairs=(1, 10_000),  # keys per document; one is asked for
    answer_length=(1, 1000),  # tokens of a key
    num_fillers=(1, 10_000),  # different filler tokens
    before=(0, 10**8),  # most tokens of filler before the first key
    spread=SPREADS,  # of training's distances: even, or even in their logarithm; 'even' if not given
    ask_every=(0, 10**8),  # fillers per question that is not answered; 0 = none, also if not given
)
DIGITS = 10
SERIES = 'distances'  # `--mode=evaluate` scores each by itself


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `distances` must be in rising order."""
    settings = {'spread': 'even', 'ask_every': 0} | {name: settings[name] for name in settings}
    words = 'tokens, such as (64, 256, 1024)'
    if problems := of_series(settings, FIELDS, 'distances', 0, words):
        return problems
    if settings['ask_every'] and settings['kind'] != 'passkey':
        problems.append(
            f"ask_every = {settings['ask_every']}: only with kind = 'passkey', where a question is one "
            'token'
        )
    if settings['kind'] in ('needles', 'associative'):
        room = (settings['num_pairs'] - 1) * (settings['answer_length'] + 2)
        if room > settings['distances'][0]:
            problems.append(
                f'distances = {settings["distances"]}: {settings["num_pairs"]} keys need {room} tokens; '
                f'choose distances of at least {room}, or fewer keys'
            )
    return problems


def greatest_distance(settings: Any) -> int:
    """Tokens between a key and its question, at most."""
    return int(settings['distances'][-1])


def vocabulary(settings: Any) -> Vocabulary:
    """Begin, marks, digits, names and fillers."""
    names = [f'n{number}' for number in range(settings['num_pairs'])]
    fillers = [f'f{number}' for number in range(settings['num_fillers'])]
    digits = [f'd{number}' for number in range(DIGITS)]
    return Vocabulary(('<begin>', '<key>', '<ask>', *digits, *names, *fillers), '<begin>')


def questions(settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where a question begins: at the last <ask>; see `registry.Task`."""
    return np.full(len(asked), np.flatnonzero(inputs == 2)[-1])


def _look_up(settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """The digits of the key if they were seen; any digit otherwise."""
    chances = np.zeros((len(asked), vocabulary(settings).vocab_size))
    question = questions(settings, inputs, asked)[0]
    named = settings['kind'] in ('needles', 'associative')
    size = settings['answer_length']
    for first in np.unique(begin):
        rows = np.flatnonzero(begin == first)
        chances[rows, 3 : 3 + DIGITS] = 1 / DIGITS
        seen = inputs[first:question]
        marks = np.flatnonzero(seen == (inputs[question + 1] if named else 1))
        # Digits at the very beginning may be the end of the key.
        key = _digits(seen[marks[0] + 1 :] if len(marks) else seen)
        key = key[:size] if len(marks) else key[-size:]
        for row in rows:
            digit = asked[row] - question - named - size + len(key)
            if 0 <= digit < len(key):
                chances[row] = 0.0
                chances[row, key[digit]] = 1.0
    return chances


def _digits(tokens: np.ndarray) -> np.ndarray:
    """The digits that `tokens` begins with."""
    others = np.flatnonzero((tokens < 3) | (tokens >= 3 + DIGITS))
    return tokens[: others[0]] if len(others) else tokens


RULES = {'look up': _look_up}


def between(random: np.random.Generator, low: int, high: int) -> int:
    """A number from `low` to `high`, uniform in the logarithm of the number plus one."""
    return int(np.exp(random.uniform(np.log(low + 1), np.log(high + 2)))) - 1


class Recall(Drawn):
    """The documents of a split as a corpus; see `data.corpus.Corpus`.

    Training draws distances between the smallest and the largest, uniformly, or with `spread = 'log'`
    so that every doubling is as frequent: what carries its memory from segment to segment learns from
    short distances first. Evaluation cycles through the list.
    """

    vocabulary = staticmethod(vocabulary)

    def _draw(self, index: int) -> tuple[np.random.Generator, int, int]:
        """Generator of a document, its distance, and its number of fillers before the first key."""
        random = self._random(index)
        distances = self._settings['distances']
        low, high = distances[0], distances[-1]
        if self._split == 'train':
            if self._settings.get('spread', 'even') == 'log':
                distance = between(random, low, high)
            else:
                distance = int(random.integers(low, high, endpoint=True))
        else:
            distance = distances[index % len(distances)]
        return random, distance, int(random.integers(0, self._settings['before'], endpoint=True))

    def __getitem__(self, index: int) -> TokenizedDocument:
        settings = self._settings
        kind, pairs, size = settings['kind'], settings['num_pairs'], settings['answer_length']
        random, distance, before = self._draw(index)
        first_filler = 3 + DIGITS + pairs

        def filler(count: int) -> np.ndarray:
            kinds = random.integers(0, settings['num_fillers'], count)
            return (first_filler + kinds).astype(np.int32)

        def key(name: int, answer: np.ndarray) -> np.ndarray:
            """<key> name answer; copies and passkeys have no name."""
            names = [] if kind in ('passkey', 'copy') else [3 + DIGITS + name]
            return np.asarray([1, *names, *answer], np.int32)

        answers = random.integers(3, 3 + DIGITS, (pairs, size)).astype(np.int32)
        names = random.permutation(pairs)
        if kind in ('passkey', 'copy'):
            names, answers = names[:1], answers[:1]
        parts = [filler(before)]
        if kind == 'associative':
            # The key asked for ends `distance` tokens before the question, whatever its position.
            asked = int(random.integers(0, pairs))
            later = pairs - 1 - asked
            parts += [key(name, answer) for name, answer in zip(names, answers, strict=True)]
            parts.append(filler(distance - later * (size + 2)))
        else:
            asked = 0
            parts.append(key(names[0], answers[0]))
            others = list(zip(names[1:], answers[1:], strict=True))
            rest = filler(distance - len(others) * (size + 2))
            every = settings.get('ask_every', 0)
            if every:
                rest[every - 1 :: every] = 2
            positions = np.sort(random.integers(0, len(rest), len(others), endpoint=True))
            at = 0
            for position, (name, answer) in zip(positions, others, strict=True):
                parts += [rest[at:position], key(name, answer)]
                at = position
            parts.append(rest[at:])
        question = [2] if kind in ('passkey', 'copy') else [2, 3 + DIGITS + names[asked]]
        tokens = np.concatenate([*parts, question, answers[asked]]).astype(np.int32)
        scored = np.zeros(tokens.shape, np.uint8)
        scored[-size:] = 1
        scored[-1] = 2
        return TokenizedDocument(tokens=tokens, num_bytes=0, scored=scored)
