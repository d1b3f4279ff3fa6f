"""SuperGLUE for encoders: the same files as `superglue`, as the texts that BERT is usually given.

BoolQ       passage and question
CB, RTE     premise and hypothesis
COPA        for each choice, which gets a score: premise with its question, and the choice
MultiRC     for each answer: passage, and question with the answer; yes or no
WiC         the two sentences, the word before the first
WSC         one text, in which the noun stands between stars and the pronoun between number signs
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from longmem_jax.data.json_lines import require_fields
from longmem_jax.errors import UsageError
from longmem_jax.hosts.data import superglue
from longmem_jax.hosts.data.classes import ClassExample, ClassSet, source_of
from longmem_jax.problems import of_section

FIELDS = dict(name=tuple(superglue.TASKS), max_length=(8, 2**20))
ASKED = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}
# A pair of texts for each choice, the label, and the group; see `ClassExample`.
Found = tuple[tuple[tuple[str, str], ...], Any, Hashable]


def _boolq(line: dict[str, Any], where: str, number: int) -> Iterator[Found]:
    yield ((line['passage'], f'{line["question"].rstrip("?")}?'),), line['label'], number


def _claim(line: dict[str, Any], where: str, number: int) -> Iterator[Found]:
    yield ((line['premise'], line['hypothesis']),), line['label'], number


def _copa(line: dict[str, Any], where: str, number: int) -> Iterator[Found]:
    if line['question'] not in ASKED:
        raise UsageError(f'{where}: question = {line["question"]!r}: must be cause or effect.')
    first = f'{line["premise"]} {ASKED[line["question"]]}'
    yield ((first, line['choice1']), (first, line['choice2'])), line['label'], number


def _multirc(line: dict[str, Any], where: str, number: int) -> Iterator[Found]:
    for passage, question, answer, label, group in superglue.multirc_answers(line, where, number):
        yield ((passage, f'{question} {answer}'),), label, group


def _wic(line: dict[str, Any], where: str, number: int) -> Iterator[Found]:
    pair = (f'{line["word"]}: {line["sentence1"]}', line['sentence2'])
    yield (pair,), line['label'], number


def _wsc(line: dict[str, Any], where: str, number: int) -> Iterator[Found]:
    words, target, there = line['text'].split(), line['target'], f'{where}, target'
    for span, mark in (('span1', '*'), ('span2', '#')):
        require_fields(target, {f'{span}_text': str, f'{span}_index': int}, there)
        first, count = target[f'{span}_index'], len(target[f'{span}_text'].split())
        if not 0 <= first < first + count <= len(words):
            raise UsageError(
                f'{there}: {span}_index = {first}: the text has {len(words)} words, and '
                f'{span}_text {count}.'
            )
        # Added to the words, so that the places of the others stay as they are.
        words[first] = f'{mark} {words[first]}'
        words[first + count - 1] += f' {mark}'
    yield ((' '.join(words), ''),), line['label'], number


PAIRS: dict[str, Callable[[dict[str, Any], str, int], Iterator[Found]]] = {
    'BoolQ': _boolq,
    'CB': _claim,
    'COPA': _copa,
    'MultiRC': _multirc,
    'RTE': _claim,
    'WiC': _wic,
    'WSC': _wsc,
}


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `FIELDS` lists what is allowed."""
    return of_section(settings, FIELDS)


def classes(settings: Any) -> int:
    """The number of classes, or of choices."""
    return len(superglue.TASKS[settings['name']].labels)


def by_choice(settings: Any) -> bool:
    """Whether there is a pair for each choice."""
    return settings['name'] == 'COPA'


def examples(data: Any, split: str) -> list[ClassExample]:
    """The examples of the task that `data.task` names; errors as in `superglue.read`."""
    name, found = data.task['name'], []
    for line, where, number in superglue.lines_of(data.path, name, split):
        for pairs, label, group in PAIRS[name](line, where, number):
            if not pairs[0][0].strip():
                raise UsageError(f'{where}: no text.')
            found.append(ClassExample(pairs, superglue.class_of(name, label, where), group))
    return found


CLASS_SET = ClassSet(examples, check, classes, by_choice)
SOURCE = source_of(CLASS_SET, 'longmem_jax.hosts.commands.superglue:classify_split')
