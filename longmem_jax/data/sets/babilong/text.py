"""Stories as English, in the forms of bAbI's released text, and back; the score of a written answer."""

import random
import re
from collections.abc import Iterable, Iterator, Sequence

from longmem_jax.data.sets.babilong.stories import (
    GIVERS,
    LABELS,
    OBJECTS,
    OPPOSITE,
    PEOPLE,
    PLACES,
    Fact,
    Question,
)

VERBS = {
    'move': ('moved to', 'went to', 'went back to', 'journeyed to', 'travelled to'),
    'get': ('got', 'took', 'grabbed', 'picked up'),
    'drop': ('left', 'discarded', 'dropped', 'put down'),
    'give': ('gave', 'handed', 'passed'),
}
THERE = ('', ' there')  # after an object that is taken or dropped
# All but those of qa4 end with a blank, as released.
ASKED = {
    'where was': 'Where was the {0} before the {1}? ',
    'what is': 'What is {0} of the {1}?',
    'what of': 'What is the {0} {1} of?',
    'what': 'What did {0} give to {1}? ',
    'who gave': 'Who gave the {0}? ',
    'to whom': 'Who did {0} give the {1} to? ',
    'who gave to': 'Who gave the {0} to {1}? ',
    'who received': 'Who received the {0}? ',
}
FORMS = [(kind, re.compile(form.format(r'(\w+)', r'(\w+)').rstrip().replace('?', r'\?') + r'\s*'))
         for kind, form in ASKED.items()]  # fmt: skip
WHERE_IS = re.compile(r'Where is (?:the )?(\w+)\?\s*')


def _any(words: Iterable[str]) -> str:
    return '|'.join(words)


_VERB = '|'.join(f'(?P<{kind}>{_any(verbs)})' for kind, verbs in VERBS.items())
FACT = re.compile(
    rf'\b(?P<who>{_any(PEOPLE | GIVERS)}) (?:{_VERB}) the (?P<what>{_any([*PLACES, *OBJECTS])})'
    rf'(?: there| to (?P<to>{_any(GIVERS)}))?\.'
    rf'|\bThe (?P<place>{_any(PLACES)}) is (?P<direction>{_any(OPPOSITE)}) of '
    rf'the (?P<of>{_any(PLACES)})\.'
)


def written(fact: Fact, draws: random.Random) -> str:
    """A fact as a sentence, with any of its verbs."""
    if fact.kind == 'is':
        return f'The {fact.who} is {fact.what} of the {fact.to}.'
    verb, end = draws.choice(VERBS[fact.kind]), f' to {fact.to}' if fact.to else ''
    if fact.kind in ('get', 'drop'):
        end = draws.choice(THERE)
    return f'{fact.who} {verb} the {fact.what}{end}.'


def asked(question: Question) -> str:
    """A question as a sentence."""
    if question.kind == 'where is':
        the = 'the ' if question.first in OBJECTS else ''
        return f'Where is {the}{question.first}? '
    return ASKED[question.kind].format(question.first, question.second)


def facts_in(text: str) -> Iterator[tuple[int, Fact]]:
    """The facts of a text, in order, each with the place where it begins."""
    for found in FACT.finditer(text):
        if found['place']:
            yield found.start(), Fact('is', found['place'], found['direction'], found['of'])
        else:
            kind = next(kind for kind in VERBS if found[kind])
            yield found.start(), Fact(kind, found['who'], found['what'], found['to'] or '')


def question_of(text: str) -> Question | None:
    """The question that a text is; None if it is none."""
    if found := WHERE_IS.fullmatch(text):
        return Question('where is', found[1])
    for kind, form in FORMS:
        if found := form.fullmatch(text):
            return Question(kind, *found.groups())
    return None


def label_match(output: str, outputs: Sequence[str]) -> bool:
    """Whether an output answers a question, by the benchmark's rule.

    The first sentence of the output names the answer, and no other of the task's labels, upper or lower
    case; labels that the question names do not count.

    Args:
      outputs: the answer and the question.
    """
    answer, question = (text.lower() for text in outputs)
    said = output.lower().split('.')[0].split('<context>')[0].split('<example>')[0]
    lower = ([label.lower() for label in labels] for labels in LABELS.values())
    of_task = next(labels for labels in lower if answer in labels)
    return [label for label in of_task if label in said and label not in question] == [answer]
