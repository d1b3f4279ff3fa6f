"""SuperGLUE (Wang et al., 2019): questions with a few possible answers, from the original files.

An example is a pair of texts and a class. For a decoder it is one document, `FIRST`, `SECOND`, `Answer:`
and the word of its class, and only the word is scored: the rows of the output layer that belong to the
words are the classifier. Encoders read other texts: `superglue_pairs`.

The answers of the original test files are not public, so 'validation' and 'test' are both `val.jsonl`.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from longmem_jax.data.json_lines import numbered_examples, require_fields
from longmem_jax.data.sets.pieces import ANSWER, READ, Piece, source_of
from longmem_jax.errors import UsageError
from longmem_jax.files import looked_for
from longmem_jax.problems import of_section
from longmem_jax.untrusted.schema import shown

FILES = {'train': 'train.jsonl', 'validation': 'val.jsonl', 'test': 'val.jsonl'}
Fields = Mapping[str, type | tuple[type, ...]]


@dataclasses.dataclass(frozen=True)
class Example:
    """A question.

    Attributes:
      first, second: its texts: what is read, and what is asked.
      label: its class, an index into `Task.answers`.
      group: examples of one group are one question (MultiRC); others are a group each.
    """

    first: str
    second: str
    label: int
    group: Hashable

    @property
    def prompt(self) -> str:
        """What a decoder reads before the answer."""
        return f'{self.first}\n{self.second}\nAnswer:'


# First and second text, label, and the group whose questions are scored together.
Question = tuple[str, str, Any, Hashable]


class Task(NamedTuple):
    """A task of the benchmark.

    Attributes:
      labels: the labels of the files, in the order of the classes.
      answers: the word of every class; none begins with another.
      fields: that a line must have.
      examples: (line, where it is, its number) to its questions as (first, second, label, group).
    """

    labels: tuple[Any, ...]
    answers: tuple[str, ...]
    fields: Fields
    examples: Callable[[dict[str, Any], str, int], Iterator[Question]]


def _boolq(line: dict[str, Any], where: str, number: int) -> Iterator[Question]:
    question = line['question'].rstrip('?')
    yield line['passage'], f'Question: {question}?', line['label'], number


def _claim(line: dict[str, Any], where: str, number: int) -> Iterator[Question]:
    yield line['premise'], f'Claim: {line["hypothesis"]}', line['label'], number


def _copa(line: dict[str, Any], where: str, number: int) -> Iterator[Question]:
    if line['question'] not in ('cause', 'effect'):
        raise UsageError(f'{where}: question = {shown(line["question"])}: must be cause or effect.')
    second = f'What was the {line["question"]}?\n1. {line["choice1"]}\n2. {line["choice2"]}'
    yield line['premise'], second, line['label'], number


def _wic(line: dict[str, Any], where: str, number: int) -> Iterator[Question]:
    second = f'Does "{line["word"]}" mean the same in both sentences?'
    yield f'{line["sentence1"]}\n{line["sentence2"]}', second, line['label'], number


def _wsc(line: dict[str, Any], where: str, number: int) -> Iterator[Question]:
    target = line['target']
    require_fields(target, {'span1_text': str, 'span2_text': str}, f'{where}, target')
    second = f'Does "{target["span2_text"]}" refer to "{target["span1_text"]}"?'
    yield line['text'], second, line['label'], number


def multirc_answers(
    line: dict[str, Any], where: str, number: int
) -> Iterator[tuple[str, str, str, int, Hashable]]:
    """(passage, question, answer, label, question's number) of every answer of a line."""
    passage = line['passage']
    require_fields(passage, {'text': str, 'questions': list}, f'{where}, passage')
    for q, question in enumerate(passage['questions']):
        require_fields(question, {'question': str, 'answers': list}, f'{where}, question {q}')
        for a, answer in enumerate(question['answers']):
            there = f'{where}, question {q}, answer {a}'
            require_fields(answer, {'text': str, 'label': int}, there)
            yield (
                passage['text'],
                question['question'],
                answer['text'],
                answer['label'],
                (number, q),
            )


def _multirc(line: dict[str, Any], where: str, number: int) -> Iterator[Question]:
    for passage, question, answer, label, group in multirc_answers(line, where, number):
        yield passage, f'Question: {question}\nProposed answer: {answer}', label, group


NO_YES = (' no', ' yes')
CLAIM: Fields = {'premise': str, 'hypothesis': str, 'label': str}
TASKS: dict[str, Task] = {
    'BoolQ': Task((False, True), NO_YES, {'question': str, 'passage': str, 'label': bool}, _boolq),
    'CB': Task(
        ('entailment', 'contradiction', 'neutral'), (' yes', ' no', ' maybe'), CLAIM, _claim
    ),
    'COPA': Task(
        (0, 1),
        (' 1', ' 2'),
        {'premise': str, 'choice1': str, 'choice2': str, 'question': str, 'label': int},
        _copa,
    ),
    'MultiRC': Task((0, 1), NO_YES, {'passage': dict}, _multirc),
    'RTE': Task(('not_entailment', 'entailment'), NO_YES, CLAIM, _claim),
    'WiC': Task(
        (False, True),
        NO_YES,
        {'word': str, 'sentence1': str, 'sentence2': str, 'label': bool},
        _wic,
    ),
    'WSC': Task((False, True), NO_YES, {'text': str, 'target': dict, 'label': bool}, _wsc),
}
FIELDS = dict(name=tuple(TASKS))


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `FIELDS` lists what is allowed."""
    return of_section(settings, FIELDS)


def lines_of(path: str, name: str, split: str) -> list[tuple[dict[str, Any], str, int]]:
    """The lines of a file, each with where it is and its number; arguments and errors as in `read`."""
    file, task = Path(path).expanduser() / name / FILES[split], TASKS[name]
    if not file.is_file():
        raise UsageError(
            f'config.data.path = {path!r}{looked_for(path)}: there is no '
            f'{name}/{FILES[split]}; give the folder of the unpacked files of '
            f'super.gluebenchmark.com ({", ".join(TASKS)}).'
        )
    lines = numbered_examples(file, task.fields)
    return [(line, f'{file}:{number}', number) for number, line in lines]


def class_of(name: str, label: Any, where: str) -> int:
    """The class of a label; raises `UsageError` if the task has no such label."""
    labels = TASKS[name].labels
    if label not in labels:
        allowed = ', '.join(map(str, labels))
        raise UsageError(f'{where}: label = {shown(label)}: allowed are {allowed}.')
    return labels.index(label)


def read(path: str, name: str, split: str) -> list[Example]:
    """The examples of a task.

    Args:
      path: folder with a folder for each task, as the benchmark is distributed.

    Raises:
      UsageError: no such file, or a line of another form; the message names the line and the field.
    """
    examples = []
    for line, where, number in lines_of(path, name, split):
        for first, second, label, group in TASKS[name].examples(line, where, number):
            found = class_of(name, label, where)
            if not first.strip():
                raise UsageError(f'{where}: no text.')
            examples.append(Example(first.strip(), second, found, group))
    return examples


def _documents(data: Any, split: str) -> list[tuple[Piece, ...]]:
    name = data.task['name']
    return [
        (Piece(example.prompt, READ), Piece(TASKS[name].answers[example.label], ANSWER))
        for example in read(data.path, name, split)
    ]


SOURCE = source_of(
    _documents, check, 'longmem_jax.hosts.commands.superglue:answer_split', ngrams=False
)
