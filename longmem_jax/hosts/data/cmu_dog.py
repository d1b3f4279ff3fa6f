"""CMU-DoG: conversations about a document (Zhou et al., 2018), from the original files.

Two people talk about a movie; what is known of it is a short document. As in Martins et al. (2022), a
model reads it before the first utterance and not again, so that it must remember it: a document of ours
is the movie's text and then the conversation, in lines of `A: ...` and `B: ...`. Utterances are scored;
in training, with `train_on_document`, so is the rest.

The original training split contains conversations of the other two, byte for byte. They are left out.
"""

import dataclasses
from pathlib import Path
from typing import Any

from longmem_jax.data.json_lines import require_fields
from longmem_jax.data.sets.pieces import READ, SCORED, Piece, source_of
from longmem_jax.errors import UsageError
from longmem_jax.files import checksum, looked_for
from longmem_jax.problems import of_section
from longmem_jax.untrusted import json_file
from longmem_jax.untrusted.schema import shown

FOLDERS = {'train': 'train', 'validation': 'valid', 'test': 'test'}
SPEAKERS = {'user1': 'A', 'user2': 'B'}
FACTS = {
    'movieName': str, 'year': str, 'genre': str, 'director': str, 'rating': list, 'cast': list,
    'introduction': str, 'critical_response': list,
}  # fmt: skip
SCENES = ('1', '2', '3')
FIELDS = dict(
    document=('before', 'none'),  # whether the document is read before the conversation
    train_on_document=bool,  # learn from the document and the names of speakers, too
    respond=bool,  # after training, write responses and score them (extra [dialogue])
    min_history=(1, 1000),  # utterances before the first response that is written
    max_dialogues=int,  # conversations with responses; 0 = all
)


@dataclasses.dataclass(frozen=True)
class Dialogue:
    """A conversation.

    (speaker 'A' or 'B', text), and what is known of the movie, '' where it is not read.
    """

    name: str
    document: str
    utterances: tuple[tuple[str, str], ...]

    def pieces(self, *, all_scored: bool = False) -> tuple[Piece, ...]:
        """The document, then for every utterance its speaker and its text."""
        read = SCORED if all_scored else READ
        document = [Piece(f'{self.document}\n', read)] if self.document else []
        said = (
            piece
            for speaker, text in self.utterances
            for piece in (Piece(f'{speaker}:', read), Piece(f' {text}\n', SCORED))
        )
        return (*document, *said)


def check(settings: Any) -> list[str]:
    """Problems of `config.data.task`; `FIELDS` lists what is allowed."""
    return of_section(settings, FIELDS)


def _load(file: Path) -> Any:
    return json_file.read(file, replace=True)


def _movies(root: Path) -> dict[int, str]:
    """The document of every movie, by its number."""
    documents = {}
    for file in sorted((root / 'WikiData').glob('*.json')):
        movie = _load(file)
        require_fields(
            movie, dict(wikiDocumentIdx=int, **{'0': dict}, **dict.fromkeys(SCENES, str)), str(file)
        )
        facts = movie['0']
        require_fields(facts, FACTS, f'{file}, section 0')
        for name in FACTS:
            if isinstance(facts[name], list) and not all(
                isinstance(one, str) for one in facts[name]
            ):
                raise UsageError(f'{file}, section 0: {name} must be a list of texts.')
        lines = [
            f'{name}: {value if isinstance(value, str) else "; ".join(map(str.strip, value))}'
            for name, value in ((name, facts[name]) for name in FACTS)
        ]
        scenes = [movie[scene] for scene in SCENES]
        documents[movie['wikiDocumentIdx']] = '\n'.join(
            ' '.join(text.split()) for text in (*lines, *scenes)
        )
    return documents


def _files(root: Path, split: str) -> list[Path]:
    return sorted((root / 'Conversations' / FOLDERS[split]).glob('*.json'))


def read(path: str, split: str, document: str = 'before') -> list[Dialogue]:
    """The conversations of a split, by the names of their files.

    Args:
      path: folder with `Conversations/` and `WikiData/`, as in the original repository.
      document: 'before' or 'none'.

    Raises:
      UsageError: no such files, or one of another form.
    """
    root = Path(path).expanduser()
    files = _files(root, split)
    if not files:
        raise UsageError(
            f'config.data.path = {path!r}{looked_for(path)}: no '
            f'Conversations/{FOLDERS[split]}/*.json; give the folder of '
            'github.com/festvox/datasets-CMU_DoG with Conversations/ and WikiData/.'
        )
    if split == 'train':
        others = {
            checksum(file) for other in ('validation', 'test') for file in _files(root, other)
        }
        files = [file for file in files if checksum(file) not in others]
    movies = _movies(root)
    return [_dialogue(file, movies, document) for file in files]


def _dialogue(file: Path, movies: dict[int, str], document: str) -> Dialogue:
    content = _load(file)
    require_fields(content, dict(history=list, wikiDocumentIdx=int), str(file))
    number = content['wikiDocumentIdx']
    if number not in movies:
        raise UsageError(
            f'{file}: wikiDocumentIdx = {number}: no such movie in WikiData/, it has '
            f'{len(movies)} of them.'
        )
    utterances = []
    for turn, said in enumerate(content['history']):
        require_fields(said, dict(text=str, uid=str), f'{file}, utterance {turn}')
        if said['uid'] not in SPEAKERS:
            raise UsageError(
                f'{file}, utterance {turn}: uid = {shown(said["uid"])}: allowed are '
                f'{", ".join(SPEAKERS)}.'
            )
        # A line is an utterance.
        if text := ' '.join(said['text'].split()):
            utterances.append((SPEAKERS[said['uid']], text))
    known = movies[number] if document == 'before' else ''
    return Dialogue(file.stem, known, tuple(utterances))


def _documents(data: Any, split: str) -> list[tuple[Piece, ...]]:
    everything = split == 'train' and data.task['train_on_document']
    return [
        dialogue.pieces(all_scored=everything)
        for dialogue in read(data.path, split, data.task['document'])
    ]


SOURCE = source_of(
    _documents,
    check,
    'longmem_jax.hosts.commands.dialogue:respond_split',
    'longmem_jax.hosts.commands.dialogue:require',
    scored=lambda task: task.respond,
)
