"""bAbI: the answers of stories by the released generator, and the facts that they follow from.

Its text has other forms than the released data, which BABILong uses; they are read here. So rules are
compared, not words: every question is answered from the facts of its story by `babilong.reasoning`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from longmem_jax.data.sets.babilong import reasoning
from longmem_jax.data.sets.babilong.stories import OPPOSITE, Fact, Question

VERBS = {
    'move': 'went to|journeyed to|travelled to|moved to',
    'get': 'grabbed|took|got',
    'drop': 'dropped|put down|let go of',
}
SIDES = '|'.join(OPPOSITE)
FACTS = [
    *((kind, re.compile(rf'(\w+) (?:{verbs}) the (\w+)\.')) for kind, verbs in VERBS.items()),
    ('give', re.compile(r'(\w+) gave (\w+) the (\w+)\.')),
    ('is', re.compile(rf'The (\w+) is ({SIDES}) the (\w+)\.')),
]
QUESTIONS = [
    ('where is', re.compile(r'Where is (?:the )?(\w+)\?')),
    ('where was', re.compile(r'Where was the (\w+) before the (\w+)\?')),
    ('what is', re.compile(rf'What is ({SIDES}) the (\w+)\?')),
    ('what of', re.compile(rf'What is the (\w+) ({SIDES})\?')),
    ('what', re.compile(r'What did (\w+) give to (\w+) last\?')),
    ('who received', re.compile(r'Who received the (\w+) last\?')),
    ('to whom', re.compile(r'Who did (\w+) give the (\w+) to last\?')),
]
LINE = re.compile(r'\d+ [A-Z][^\t]*\.|\d+ [A-Z][^\t]*\?\s*\t[^\t]*\t[\d ]+')


def knows(path: Path) -> bool:
    """Whether a file has stories of bAbI."""
    if path.suffix != '.txt' or not path.is_file():
        return False
    with path.open(encoding='utf-8', errors='replace') as file:
        return bool(LINE.fullmatch(file.readline().rstrip('\n')))


def _fact(text: str) -> Fact:
    for kind, form in FACTS:
        if found := form.fullmatch(text):
            who, what, *to = found.groups()
            return Fact(kind, who, to[0], what) if kind == 'give' else Fact(kind, who, what, *to)
    raise ValueError(f'{text!r} is no fact of qa1 to qa5')


def _question(text: str) -> Question:
    for kind, form in QUESTIONS:
        if found := form.fullmatch(text):
            return Question(kind, *found.groups())
    raise ValueError(f'{text!r} is no question of qa1 to qa5')


def check(path: Path) -> Iterator[tuple[str, str, str]]:
    """Answers and lines of their facts of every story: ours, the reference."""
    stories: list[tuple[list[str], list[str]]] = []
    facts: list[Fact] = []
    lines: list[str] = []  # the numbers of the facts
    for line in path.read_text(encoding='utf-8').splitlines():
        number, text = line.split(' ', 1)
        if number == '1':
            stories.append(([], []))
            facts, lines = [], []
        if '\t' not in text:
            facts.append(_fact(text))
            lines.append(number)
            continue
        question, answer, reasons = text.split('\t')
        found = reasoning.answer(facts, _question(question.strip()))
        ours = found and f'{found.answer} {" ".join(lines[fact] for fact in found.facts)}'
        stories[-1][0].append(ours or 'none')
        stories[-1][1].append(f'{answer} {reasons}')
    for number, (ours_, reference) in enumerate(stories):
        yield f'story {number}', '\n'.join(ours_), '\n'.join(reference)
