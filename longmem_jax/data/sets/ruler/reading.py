"""RULER's two tasks by questions about documents: those of SQuAD (qa_1) or HotpotQA (qa_2)."""

from typing import Any, NamedTuple

from longmem_jax.data.sets.ruler.sizes import Draws, Family, Sample, Unfit
from longmem_jax.errors import UsageError

ASKED = (
    'Answer the question based on the given documents. Only give me the answer and do not output '
    'any other words.'
)
TEXT = '{0}\n\nThe following are given documents.\n\n{1}\n\n{0}\n\nQuestion: {2}'
PREFIX = ' Answer:'
STEP = 10


class Question(NamedTuple):
    """A question.

    Attributes:
      text: the question.
      answers: any of them is right.
      needed: numbers of the documents that answer it.
      near: of the same article, taken before others.
    """

    text: str
    answers: list[str]
    needed: list[int]
    near: list[int]


Set = tuple[list[Question], list[str]]  # questions, documents


def squad(content: Any) -> Set:
    """Of SQuAD 1.1 or 2.0, without questions that have no answer; `content` as its JSON file."""
    articles = [article['paragraphs'] for article in content['data']]
    documents = sorted({paragraph['context'] for article in articles for paragraph in article})
    number = {document: i for i, document in enumerate(documents)}
    questions = []
    for article in articles:
        numbers = [number[paragraph['context']] for paragraph in article]
        for paragraph, own in zip(article, numbers, strict=True):
            for asked in paragraph['qas']:
                if not asked.get('is_impossible', False):
                    answers = [answer['text'] for answer in asked['answers']]
                    near = [other for other in numbers if other != own]
                    questions.append(Question(asked['question'], answers, [own], near))
    return questions, documents


def hotpot(content: Any) -> Set:
    """Of HotpotQA; `content` as its JSON file."""

    def documents_of(asked: Any) -> list[str]:
        return [f'{title}\n{"".join(sentences)}' for title, sentences in asked['context']]

    documents = sorted({document for asked in content for document in documents_of(asked)})
    number = {document: i for i, document in enumerate(documents)}
    questions = [
        Question(each['question'], [each['answer']], [number[d] for d in documents_of(each)], [])
        for each in content
    ]
    return questions, documents


READERS = {'qa_1': squad, 'qa_2': hotpot}


class Reading(Family):
    """Questions about documents."""

    generated = 32
    question = 'Question:'
    due = PREFIX
    letters = '(?s:.)+'
    part = '(?!)'  # an answer is one part

    def __init__(self, name: str, content: Any, path: str):
        """`content`: the JSON of the file at `path`; `UsageError` if it is of another form."""
        try:
            self.questions, self._documents = READERS[name](content)
        except (KeyError, TypeError, ValueError) as error:
            of = 'SQuAD' if name == 'qa_1' else 'HotpotQA'
            raise UsageError(
                f'config.data.path = {path}: not the JSON of {of} ({type(error).__name__}: {error}).'
            ) from error
        for question in self.questions:
            if not question.answers or not all(isinstance(a, str) and a for a in question.answers):
                raise UsageError(
                    f'config.data.path = {path}: the question {question.text!r} has the answers '
                    f'{question.answers}; give at least one text.'
                )
        self._numbers = {question.text: i for i, question in enumerate(self.questions)}

    def step(self, length: int) -> int:
        """Documents."""
        return STEP

    def parts(self, sample: Sample) -> list[str]:
        """The first answer."""
        return sample.outputs[:1]

    def guess(self, seen: str, question: str, named: list[str]) -> str | None:
        """The answer in the file, if all documents that answer the question were seen."""
        asked = question.removeprefix('Question: ').removesuffix(PREFIX)
        if named or asked not in self._numbers:
            return None
        found = self.questions[self._numbers[asked]]
        known = all(self._documents[number] in seen for number in found.needed)
        return found.answers[0] if known else None

    def draw(self, draws: Draws, units: int, length: int, number: int) -> Sample:
        """See `sizes.Family`; `number` is that of the question."""
        asked, documents = self.questions[number], self._documents
        more = units - len(asked.needed)
        if units >= len(documents):
            chosen = (documents * -(-units // len(documents)))[:units]
        elif more < 0:
            raise Unfit
        elif more > len(asked.near):
            known = {*asked.needed, *asked.near}
            others = [i for i in range(len(documents)) if i not in known]
            drawn = draws.random.sample(others, max(0, more - len(asked.near)))
            chosen = [documents[i] for i in asked.needed + asked.near + drawn]
        else:
            drawn = draws.random.sample(asked.near, more)
            chosen = [documents[i] for i in asked.needed + drawn]
        draws.shuffled(chosen)
        context = '\n\n'.join(f'Document {i}:\n{text}' for i, text in enumerate(chosen, 1))
        return Sample(TEXT.format(ASKED, context, asked.text), PREFIX, asked.answers)
