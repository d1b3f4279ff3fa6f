"""Four tasks of extractive question answering as one stream (de Masson d'Autume et al., 2019).

SQuAD 1.1, QuAC, and TriviaQA with documents of the web and of Wikipedia, which count as two tasks. A row
is [CLS] CONTEXT [SEP] QUESTION [SEP], and the answers are spans of its tokens. The answers of the test
files are not public, so the development files are the test sets.

A long context loses its end. A row to train on must have an answer in what is left; a row of a test set
without one stays, and no span is right for it.

  squad            DIR/squad/{train,dev}-v1.1.json
  quac             DIR/quac/{train,val}_v0.2.json; each question by itself
  trivia_web       DIR/triviaqa/qa/web-{train,dev}.json and DIR/triviaqa/evidence/web/
  trivia_wikipedia DIR/triviaqa/qa/wikipedia-{train,dev}.json and DIR/triviaqa/evidence/wikipedia/

TriviaQA gives one row per question: to train on with its first document that has an answer, to test
with its first document. Where a name of the answer stands in it is an answer, in any case.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longmem_jax.data.json_lines import require_fields
from longmem_jax.data.stored_files import read_whole
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError, say, unknown
from longmem_jax.files import looked_for
from longmem_jax.lifelong.data.texts import Marked, choose
from longmem_jax.lifelong.rows import Rows
from longmem_jax.lifelong.stream import Task
from longmem_jax.problems import defaults_and_rules, of_section
from longmem_jax.untrusted import json_file

ORDERS = {
    'i': ('quac', 'trivia_web', 'trivia_wikipedia', 'squad'),
    'ii': ('squad', 'trivia_wikipedia', 'quac', 'trivia_web'),
    'iii': ('trivia_web', 'trivia_wikipedia', 'squad', 'quac'),
    'iv': ('trivia_wikipedia', 'quac', 'trivia_web', 'squad'),
}
SETTINGS, FIELDS = defaults_and_rules(
    rows=(0, int),  # to train on, of every task; 0 = all
    test_rows=(0, int),  # at most; 0 = all
    max_length=(384, (16, 2**15 - 1)),  # tokens of a row, with its marks
    max_question=(64, (1, 2**14)),  # tokens of a question
    seed=(42, int),  # of which rows are taken
)
NO_ANSWER = 'CANNOTANSWER'
# Characters of a document that are read per token of a row: more than any text needs.
CHARACTERS = 32
CONTEXTS = 4096  # that are remembered


class Context(NamedTuple):
    """A text with answers in it.

    Attributes:
      text: what is read.
      spans: (first character, the one after the last) of the answers; the first is trained on.
    """

    text: str
    spans: tuple[tuple[int, int], ...]


class Question(NamedTuple):
    """A question; `contexts` reads the contexts that may be taken, in their order."""

    text: str
    contexts: Callable[[], Iterator[Context]]


def check(settings: Mapping[str, Any]) -> list[str]:
    """Problems of the settings, each beginning with the name of a field."""
    problems = of_section(settings, FIELDS)
    if not problems and settings['max_question'] + 8 > settings['max_length']:
        problems.append(
            f'max_question = {settings["max_question"]}: leaves no room for a context in max_length = '
            f'{settings["max_length"]}'
        )
    return problems


def _json(file: Path, field: str) -> list[Any]:
    """The list of a file's field; raises `UsageError` if there is none."""
    content = json_file.parse(read_whole(file), str(file), replace=True)
    require_fields(content, {field: list}, str(file))
    return content[field]


def _span(context: str, answer: Any, where: str) -> tuple[int, int] | None:
    """The characters of an answer; None if it is not at its `answer_start`."""
    require_fields(answer, dict(text=str, answer_start=int), where)
    start = answer['answer_start']
    end = start + len(answer['text'])
    fits = start >= 0 and answer['text'].strip() and context[start:end] == answer['text']
    return (start, end) if fits else None


def squad(file: Path) -> list[Question]:
    """The questions of a file of SQuAD's form, which QuAC has too.

    What cannot be answered is answered in QuAC by a word after the context. It is put before it, so that
    a context that is cut keeps it.

    Raises:
      UsageError: no such file, another form, or answers that are not at their positions.
    """
    questions, unfit = [], 0
    for number, article in enumerate(_json(file, 'data')):
        require_fields(article, dict(paragraphs=list), f'{file}, article {number}')
        for part, paragraph in enumerate(article['paragraphs']):
            where = f'{file}, article {number}, paragraph {part}'
            require_fields(paragraph, dict(context=str, qas=list), where)
            context = paragraph['context']
            moved = context.endswith(NO_ANSWER)
            text = f'{NO_ANSWER} {context.removesuffix(NO_ANSWER)}' if moved else context
            for asked in paragraph['qas']:
                require_fields(asked, dict(question=str, answers=list), where)
                # QuAC: what the teacher answered is trained on, whatever annotators added.
                answers = [*filter(None, [asked.get('orig_answer')]), *asked['answers']]
                spans = [_span(context, answer, where) for answer in answers]
                if not any(spans):
                    unfit += 1
                    continue
                kept = dict.fromkeys(_moved(span, context, moved) for span in spans if span)
                questions.append(
                    Question(asked['question'], functools.partial(_given, Context(text, (*kept,))))
                )
    if not questions or unfit > len(questions):
        raise UsageError(
            f'{file}: {len(questions):,} questions have their answer at answer_start, and '
            f'{unfit:,} do not; is this SQuAD 1.1, or QuAC, as distributed?'
        )
    return questions


def _moved(span: tuple[int, int], context: str, moved: bool) -> tuple[int, int]:
    """A span after the word for no answer has been put first."""
    if not moved:
        return span
    if span[0] >= len(context) - len(NO_ANSWER):
        return 0, len(NO_ANSWER)
    return span[0] + len(NO_ANSWER) + 1, span[1] + len(NO_ANSWER) + 1


def _given(context: Context) -> Iterator[Context]:
    yield context


def trivia(file: Path, evidence: Path, field: str, characters: int) -> list[Question]:
    """The questions of a file of TriviaQA; documents are read when they are asked for.

    Args:
      field: 'SearchResults' or 'EntityPages', the list of a question's documents.
      characters: most that are read of a document, after runs of blanks have become one.

    Raises:
      UsageError: no such file, or another form; a document that is missing, when it is read.
    """
    questions = []
    for number, asked in enumerate(_json(file, 'Data')):
        where = f'{file}, question {number}'
        require_fields(asked, {'Question': str, 'Answer': dict, field: list}, where)
        require_fields(asked['Answer'], dict(Value=str, Aliases=list), f'{where}, Answer')
        names = {asked['Answer']['Value'], *asked['Answer']['Aliases']}
        names = {' '.join(name.split()) for name in names if isinstance(name, str)} - {''}
        documents = []
        for document in asked[field]:
            require_fields(document, dict(Filename=str), f'{where}, {field}')
            documents.append(evidence / document['Filename'])
        if documents and names:
            read = functools.partial(_documents, documents, sorted(names), characters)
            questions.append(Question(asked['Question'], read))
    if not questions:
        raise UsageError(f'{file}: has no questions with {field}.')
    return questions


def _documents(files: Sequence[Path], names: Sequence[str], characters: int) -> Iterator[Context]:
    # The longest name first: of names that begin alike it is the one that is found.
    ordered = sorted(names, key=lambda name: (-len(name), name))
    found = re.compile(rf'(?<!\w)(?:{"|".join(map(re.escape, ordered))})(?!\w)', re.IGNORECASE)
    for file in files:
        text = ' '.join(read_whole(file).decode('utf-8', 'replace').split())[:characters]
        yield Context(text, tuple(match.span() for match in found.finditer(text)))


def _trivia(domain: str, field: str) -> Callable[[Path, int], list[list[Question]]]:
    def read(root: Path, characters: int) -> list[list[Question]]:
        folder = root / 'triviaqa'
        return [
            trivia(_file(folder / 'qa' / f'{domain}-{split}.json'), folder / 'evidence' / domain,
                   field, characters)
            for split in ('train', 'dev')
        ]  # fmt: skip

    return read


def _file(file: Path) -> Path:
    if not file.is_file():
        raise UsageError(
            f'{file}: no such file{looked_for(file)}; config.data.path must be a folder with '
            'squad/, quac/ and triviaqa/, each as distributed.'
        )
    return file


TASKS: dict[str, Callable[[Path, int], list[list[Question]]]] = {
    'squad': lambda root, _: [
        squad(_file(root / 'squad' / f'{split}-v1.1.json')) for split in ('train', 'dev')
    ],
    'quac': lambda root, _: [
        squad(_file(root / 'quac' / f'{split}_v0.2.json')) for split in ('train', 'val')
    ],
    'trivia_web': _trivia('web', 'SearchResults'),
    'trivia_wikipedia': _trivia('wikipedia', 'EntityPages'),
}


def read(
    path: str, settings: Mapping[str, Any], names: Sequence[str] = tuple(TASKS)
) -> dict[str, list[list[Question]]]:
    """The questions of tasks: those of the training file, and those of the development file.

    Raises:
      UsageError: wrong settings, an unknown task, a file that is missing or of another form.
    """
    if problems := check(settings):
        raise UsageError('; '.join(problems) + '.')
    for name in names:
        if name not in TASKS:
            raise UsageError(f'{unknown("task", name, TASKS)}.')
    root = Path(path).expanduser()
    return {name: TASKS[name](root, CHARACTERS * settings['max_length']) for name in names}


def training_texts(questions: Mapping[str, list[list[Question]]]) -> list[str]:
    """Contexts, each once, and questions of the training files."""
    texts: dict[str, None] = {}
    for training, _ in questions.values():
        for question in training:
            texts[next(question.contexts()).text] = texts[question.text] = None
    return list(texts)


class _Encoded(NamedTuple):
    """A row before all rows are as long: the parts of `Marked.join`, and its answers [answers, 2]."""

    parts: list[np.ndarray]
    answers: np.ndarray


def spans_of_tokens(spans: Sequence[tuple[int, int]], places: np.ndarray) -> np.ndarray:
    """The first and the last token of every span, each once, int32 [spans, 2].

    Only of spans that lie within the tokens. Spans and `places` of tokens, int32 [n, 2], are the
    first character and the one after the last.
    """
    found: dict[tuple[int, int], None] = {}
    for start, end in spans:
        inside = np.flatnonzero((places[:, 1] > start) & (places[:, 0] < end))
        if len(inside) and (places[-1, 1] >= end):
            found[int(inside[0]), int(inside[-1])] = None
    return np.asarray(list(found), np.int32).reshape(-1, 2)


class _Encoder:
    """Makes rows of questions; remembers contexts, since questions that are neighbours share them."""

    def __init__(self, tokenizer: Tokenizer, settings: Mapping[str, Any]):
        self.marked, self.settings = Marked(tokenizer), settings
        self._read = functools.lru_cache(CONTEXTS)(self._encode)

    def _encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        ids, places = self.marked.ids_with_places(text)
        most = self.settings['max_length']
        # Copies, so that the rest of a long text is not held.
        return ids[:most].copy(), places[:most].copy()

    def row(self, question: Question, *, answered: bool) -> _Encoded | None:
        """A row; None if it must be answered and is not."""
        asked = self.marked.ids(question.text)[: self.settings['max_question']]
        room = self.settings['max_length'] - 3 - len(asked)
        for context in question.contexts():
            ids, places = (leaf[:room] for leaf in self._read(context.text))
            # The mark before the context moves all tokens by one.
            answers = spans_of_tokens(context.spans, places) + 1
            if len(asked) and len(ids) and (len(answers) or not answered):
                return _Encoded(self.marked.join(ids, asked), answers)
        return None


def _in_order(count: int, chosen: int, seed: int) -> np.ndarray:
    """Numbers of questions: in random order if only some are taken, else as in the file."""
    return np.random.default_rng(seed).permutation(count) if chosen else np.arange(count)


def _rows(marked: Marked, encoded: Sequence[_Encoded], length: int, most: int) -> Rows:
    answers = np.full((len(encoded), max(most, 1), 2), -1, np.int16)
    for row, (_, spans) in enumerate(encoded):
        answers[row, : len(spans)] = spans
    return marked.rows([parts for parts, _ in encoded], length, answers)


def tasks(
    questions: Mapping[str, list[list[Question]]],
    tokenizer: Tokenizer,
    settings: Mapping[str, Any],
    report: Callable[[str], None] = say,
) -> dict[str, Task]:
    """Rows of all tasks; answers are first and last tokens, int16 [rows, answers, 2], -1 = none.

    `report` gets a line for each task: rows, and what a cut took from them.

    Raises:
      UsageError: a tokenizer without [CLS] and [SEP], or too few rows.
    """
    encoder, found = _Encoder(tokenizer, settings), {}
    for name, (training, asked) in questions.items():
        train = _choose(encoder, training, name)
        order = _in_order(len(asked), settings['test_rows'], settings['seed'])
        tested = [
            row
            for i in order[: settings['test_rows'] or None]
            if (row := encoder.row(asked[i], answered=False))
        ]
        if not tested:
            raise UsageError(f'{name}: the development file has no questions with a context.')
        missed = sum(not len(row.answers) for row in tested)
        report(
            f'{name}: {len(train):,} rows to train on, {len(tested):,} to test; {missed:,} of these '
            f'have no answer in the first {settings["max_length"]} tokens'
        )
        found[name] = train, tested
    most = max(len(row.answers) for splits in found.values() for rows in splits for row in rows)
    return {
        name: Task(*(_rows(encoder.marked, rows, settings['max_length'], most) for rows in splits))
        for name, splits in found.items()
    }


def _choose(encoder: _Encoder, training: Sequence[Question], name: str) -> list[_Encoded]:
    """Rows to train on, all with an answer."""
    rows, seed = encoder.settings['rows'], encoder.settings['seed']
    answered: list[_Encoded] = []
    for i in _in_order(len(training), rows, seed):
        if rows and len(answered) == rows:
            break
        if row := encoder.row(training[i], answered=True):
            answered.append(row)
    return [answered[i] for i in choose(len(answered), rows, name, seed)]
