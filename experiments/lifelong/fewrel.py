"""Streams of relations and of questions from a few relations of FewRel, small enough to learn.

python -m experiments.lifelong.fewrel --fewrel=FOLDER --squad=FOLDER --output=DIR [--candidates=8]

FOLDER of FewRel has `train.json` and `test.json` with the places of both entities, and
`pid2name.json`; that of SQuAD `train-v1.1.json` and `dev-v1.1.json`. Test sentences that are to train
on too are left out.

DIR/relations is for `configs/lifelong_relations.py`: both entities are named before the sentence, and
a sentence has as many candidates as are asked for, drawn from all relations.

DIR/questions is for `configs/lifelong_qa.py`. QuAC and TriviaQA are not at hand: their files are
written in their forms, with questions about FewRel's sentences in their place.

  squad             SQuAD, with the sentence of the answer as the context
  trivia_web        the first half of the relations: which second entity has this first one?
  trivia_wikipedia  the same of the other half
  quac              all relations: which first entity has this second one? For every third row the second
                    entity is that of another sentence of the relation, and there is no answer.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.options import make_parser
from longmem_jax.lifelong.data.qa import NO_ANSWER

SPLITS = ('train', 'test')
QUAC = {'train': 'train_v0.2.json', 'test': 'val_v0.2.json'}
TRIVIA = {'train': 'train', 'test': 'dev'}
SQUAD = {'train': 'train-v1.1.json', 'test': 'dev-v1.1.json'}
UNANSWERED = 3  # of the questions like QuAC's one in as many has no answer


class Sentence(NamedTuple):
    """A sentence that states a relation.

    Attributes:
      words: of it.
      first, second: the entities, as numbers of words [from, to).
      relation: its number.
    """

    words: list[str]
    first: tuple[int, int]
    second: tuple[int, int]
    relation: int

    def entity(self, place: tuple[int, int]) -> str:
        """The words of an entity."""
        return ' '.join(self.words[slice(*place)])

    @property
    def text(self) -> str:
        """All words."""
        return ' '.join(self.words)


Sentences = dict[str, list[Sentence]]  # by split


def read(folder: Path) -> tuple[list[str], Sentences]:
    """Names of the relations, and their sentences."""
    described = json.loads((folder / 'pid2name.json').read_text())
    given = {split: json.loads((folder / f'{split}.json').read_text()) for split in SPLITS}
    codes, found, known = sorted(given['train']), {}, set()
    for split in SPLITS:
        found[split] = []
        for number, code in enumerate(codes):
            for each in given[split][code]:
                # FewRel has blanks as words.
                kept = [i for i, word in enumerate(each['tokens']) if word.strip()]
                place = {old: new for new, old in enumerate(kept)}
                words = [each['tokens'][i] for i in kept]
                ends = [
                    (place[min(each[which][2][0])], place[max(each[which][2][0])] + 1)
                    for which in 'ht'
                ]
                sentence = Sentence(words, *ends, number)
                if split == 'train' or sentence.text not in known:
                    found[split].append(sentence)
        known |= {sentence.text for sentence in found[split]}
    return [described[code][0] for code in codes], found


def write_relations(names: list[str], found: Sentences, candidates: int, folder: Path) -> None:
    """The files of `data/relations.py`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'relation_name.txt').write_text('\n'.join(names) + '\n')
    random = np.random.default_rng(0)
    for split in SPLITS:
        lines = []
        for each in found[split]:
            others = np.delete(np.arange(len(names)), each.relation)
            wrong = random.choice(others, candidates - 1, replace=False)
            numbers = ' '.join(str(1 + i) for i in (each.relation, *wrong))
            text = f'{each.entity(each.first)} , {each.entity(each.second)} : {each.text}'
            lines.append(f'{1 + each.relation}\t{numbers}\t{text}\n')
        (folder / f'{split}.txt').write_text(''.join(lines))


def write_trivia(
    names: list[str], found: Sentences, relations: range, field: str, domain: str, folder: Path
) -> None:
    """Questions for the second entity, in the form of TriviaQA: a document for each."""
    (folder / 'qa').mkdir(parents=True, exist_ok=True)
    (folder / 'evidence' / domain).mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        asked = []
        for number, each in enumerate(s for s in found[split] if s.relation in relations):
            file = f'{split}-{number}.txt'
            (folder / 'evidence' / domain / file).write_text(each.text)
            answer = dict(Value=each.entity(each.second), Aliases=[])
            question = f'{names[each.relation]} of {each.entity(each.first)} ?'
            asked.append({'Question': question, 'Answer': answer, field: [dict(Filename=file)]})
        file = folder / 'qa' / f'{domain}-{TRIVIA[split]}.json'
        file.write_text(json.dumps(dict(Data=asked)))


def write_quac(names: list[str], found: Sentences, folder: Path) -> None:
    """Questions for the first entity, in the form of QuAC, some of them without an answer."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        paragraphs = []
        for number, each in enumerate(found[split]):
            second, text = each.entity(each.second), each.text
            start = len(' '.join([*each.words[: each.first[0]], ''])) if each.first[0] else 0
            answer = dict(text=each.entity(each.first), answer_start=start)
            others = [s for s in found[split] if s.relation == each.relation]
            other = others[number * 7 % len(others)]
            if number % UNANSWERED == 0 and other.entity(other.second) not in text:
                second = other.entity(other.second)
                answer = dict(text=NO_ANSWER, answer_start=len(text) + 1)
            question = f'which has the {names[each.relation]} {second} ?'
            asked = dict(question=question, answers=[answer])
            paragraphs.append(dict(context=f'{text} {NO_ANSWER}', qas=[asked]))
        (folder / QUAC[split]).write_text(json.dumps(dict(data=[dict(paragraphs=paragraphs)])))


def sentences_of(context: str) -> Iterator[tuple[int, int]]:
    """First character of each sentence, and the one after its last."""
    start = 0
    for mark in re.finditer(r'[.!?]["\')]?\s+(?=["\'(]?[A-Z])', context):
        yield start, mark.end()
        start = mark.end()
    yield start, len(context)


def write_squad(given: Path, folder: Path) -> None:
    """SQuAD with the sentence of a question's first answer as its context, where it holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in SQUAD.values():
        paragraphs = []
        for article in json.loads((given / file).read_text())['data']:
            for paragraph in article['paragraphs']:
                context = paragraph['context']
                for asked in paragraph['qas']:
                    paragraphs += filter(None, [_shortened(context, asked)])
        (folder / file).write_text(json.dumps(dict(data=[dict(paragraphs=paragraphs)])))


def _shortened(context: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """A paragraph of one sentence; None if the first answer is not in one."""

    def inside(answer: dict[str, Any], start: int, end: int) -> bool:
        first = answer['answer_start']
        return start <= first and first + len(answer['text']) <= end

    for start, end in sentences_of(context):
        if inside(asked['answers'][0], start, end):
            answers = [
                dict(text=answer['text'], answer_start=answer['answer_start'] - start)
                for answer in asked['answers']
                if inside(answer, start, end)
            ]
            question = dict(question=asked['question'], answers=answers)
            return dict(context=context[start:end].rstrip(), qas=[question])
    return None


def main() -> None:
    """Runs the command."""
    parser = make_parser(__doc__)
    for name in ('fewrel', 'squad', 'output'):
        parser.add_argument(f'--{name}', type=Path, required=True)
    parser.add_argument('--candidates', type=int, default=8)
    options = parser.parse_args()
    names, found = read(options.fewrel)
    if not 2 <= options.candidates <= len(names):
        parser.error(f'--candidates={options.candidates}: choose 2 to {len(names)}')
    write_relations(names, found, options.candidates, options.output / 'relations')
    half, folder = len(names) // 2, options.output / 'questions'
    trivia = folder / 'triviaqa'
    write_trivia(names, found, range(half), 'SearchResults', 'web', trivia)
    write_trivia(names, found, range(half, len(names)), 'EntityPages', 'wikipedia', trivia)
    write_quac(names, found, folder / 'quac')
    write_squad(options.squad, folder / 'squad')
    counts = ', '.join(f'{len(rows):,} {split}' for split, rows in found.items())
    print(f'{options.output}: {len(names)} relations, sentences: {counts}')


if __name__ == '__main__':
    main()
