"""Instructions among distractor text: tell X, when you meet them, that Y wants to see them.

After the instruction task of Sukhbaatar et al. (2021), whose text (LIGHT) is not released with the
paper: a walk through generated locations, word by word. Sometimes a character asks to tell the X that
the Y wants to see them; about `mean_gap` words later X appears, and the next line must execute the
instruction. Several instructions may be pending. The model learns from all of the text and is scored on
executions only; one is right if all its words are right.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.tasks.drawn import Drawn
from longmem_jax.data.tasks.vocabulary import Vocabulary
from longmem_jax.errors import UsageError

CHARACTERS = (
    'king queen knight guard priest monk witch wizard thief merchant farmer fisherman hunter '
    'blacksmith baker cook servant jester bard healer sailor captain soldier archer stranger '
    'hermit giant dwarf elf troll goblin dragon ghost miller shepherd beggar judge prisoner '
    'messenger scribe gardener carpenter tailor mason potter weaver brewer groom maid child'
).split()
PLACES = (
    'castle tower hall kitchen garden forest cave river bridge village market church graveyard '
    'harbour ship mill barn stable dungeon library chapel cellar meadow swamp mountain valley '
    'road inn tavern workshop'
).split()
ADJECTIVES = (
    'old dark quiet cold warm narrow wide empty crowded green grey golden broken hidden holy '
    'ancient small great strange dusty'
).split()
THINGS = (
    'table chair candle lamp sword shield book rope barrel chest carpet window door fire well '
    'statue tree stone bench basket coin cup plate mirror bell wagon boat net bucket key'
).split()
ACTIONS = 'looks waits sleeps sings works laughs cries reads eats drinks dances whispers'.split()
DIRECTIONS = 'north south east west up down'.split()
GLUE = (
    '<begin> You are in the of . is here There a near it smells like and says : " can you tell that '
    'wants to see them ? I have lost my did find any The go ! Nobody knows why'
).split()
# Words of an execution, and which of them name X and Y: 'You tell the X " Y wants to see you ! "'.
EXECUTION, TARGET, SENDER = 12, 3, 5

FIELDS = dict(
    documents=(1, 10**9),
    eval_documents=(1, 10**9),
    locations=(1, 10**6),  # visited per document
    num_characters=(4, len(CHARACTERS)),
    mean_gap=(1.0, 1e8),  # words from an instruction to its execution
    instruction_share=(0.0, 1.0),  # of locations in which an instruction is given
    train_on_text=bool,  # learn from all of the text, or from executions only
)


def vocabulary(settings: Any) -> Vocabulary:
    """All words of all lists."""
    lists = (GLUE, CHARACTERS, PLACES, ADJECTIVES, THINGS, ACTIONS, DIRECTIONS)
    return Vocabulary(tuple(dict.fromkeys(word for words in lists for word in words)), '<begin>')


def questions(settings: Any, inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where a question begins: at 'The X is here .'; see `registry.Task`.

    Raises:
      UsageError: something else than executions is asked for, as in training on all of the text.
    """
    places = np.flatnonzero(inputs == vocabulary(settings).ids('here')[0])
    last = np.searchsorted(places, asked, side='right') - 1
    here = places[np.maximum(last, 0)] if len(places) else np.full(len(asked), -1)
    if (here < 0).any() or (last < 0).any() or (asked - here > EXECUTION).any():
        raise UsageError(
            'config.data.task.train_on_text = True: on the training split all of the text is scored, '
            'and rules only execute instructions; use --split=test, or '
            '--config.data.task.train_on_text=False.'
        )
    return here - 3


def _execute(settings: Any, inputs: np.ndarray, asked: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Executes the last instruction for who is here; any other character if none was seen."""
    words = vocabulary(settings)
    names = np.asarray(words.ids(' '.join(CHARACTERS[: settings['num_characters']])))
    line = words.ids('You tell the king " king wants to see you ! "')
    told = np.asarray(words.ids('can you tell the'))  # then X, 'that the', Y
    starts = np.arange(max(len(inputs) - len(told), 0))
    for offset, word in enumerate(told):
        starts = starts[inputs[starts + offset] == word]
    question = questions(settings, inputs, asked)
    chances = np.zeros((len(asked), words.vocab_size))
    for row, (at, ask, first) in enumerate(zip(asked, question, begin, strict=True)):
        place, name = at - ask - 4, inputs[ask + 1]
        if place == SENDER:
            seen = starts[(starts >= first) & (starts < ask)]
            seen = seen[inputs[seen + 4] == name]
            if len(seen):
                chances[row, inputs[seen[-1] + 7]] = 1.0
            else:
                chances[row, names[names != name]] = 1 / (len(names) - 1)
        else:
            chances[row, name if place == TARGET else line[place]] = 1.0
    return chances


RULES = {'execute': _execute}


class _Walk:
    """Writes one document: (line, whether it executes an instruction)."""

    def __init__(self, random: np.random.Generator, settings: Any):
        self._random, self._settings = random, settings
        self._names = CHARACTERS[: settings['num_characters']]
        self._pending: dict[str, tuple[str, int]] = {}  # X -> Y, number of words when X is due
        self.lines: list[tuple[str, bool]] = []
        self._num_words = 0

    def _add(self, line: str, executes: bool = False) -> None:
        self.lines.append((line, executes))
        self._num_words += len(line.split())

    def _pick(self, words: Sequence[str]) -> str:
        return words[int(self._random.integers(len(words)))]

    def _distract(self) -> None:
        """Adds a distractor; none begins like an execution."""
        kind = int(self._random.integers(5))
        thing, other = self._pick(THINGS), self._pick(THINGS)
        if kind == 0:
            self._add(f'There is a {self._pick(ADJECTIVES)} {thing} near the {other} .')
        elif kind == 1:
            self._add(f'it smells like {thing} and {other} .')
        elif kind == 2:
            self._add(f'The {self._pick(self._names)} says : " I have lost my {thing} . "')
        elif kind == 3:
            self._add(f'The {self._pick(self._names)} says : " did you find any {thing} ? "')
        else:
            self._add(f'Nobody knows why the {self._pick(self._names)} {self._pick(ACTIONS)} .')

    def _meet(self) -> None:
        """Meets the characters that are due, or else one without an instruction."""
        due = [name for name, (_, at) in self._pending.items() if at <= self._num_words]
        for name in due:
            self._add(f'The {name} is here .')
            sender, _ = self._pending.pop(name)
            self._add(f'You tell the {name} " {sender} wants to see you ! "', executes=True)
        others = [name for name in self._names if name not in self._pending]
        if others and not due:
            name = self._pick(others)
            self._add(f'The {name} is here .')
            self._add(f'The {name} {self._pick(ACTIONS)} .')

    def _instruct(self) -> None:
        """Sometimes adds an instruction."""
        free = [name for name in self._names if name not in self._pending]
        # Two characters remain, one to speak and one to meet.
        if len(free) < 3 or self._random.random() >= self._settings['instruction_share']:
            return
        speaker, target, sender = (str(n) for n in self._random.permutation(free)[:3])
        self._add(
            f'The {speaker} says : " can you tell the {target} that the {sender} wants to see them ? "'
        )
        gap = int(self._random.geometric(1.0 / self._settings['mean_gap']))
        self._pending[target] = (sender, self._num_words + gap)

    def visit(self) -> None:
        """Adds the lines of one location."""
        first, second = self._pick(ADJECTIVES), self._pick(PLACES)
        self._add(f'You are in the {first} {second} .')
        self._meet()
        for _ in range(int(self._random.integers(1, 4))):
            self._distract()
        self._instruct()
        for _ in range(int(self._random.integers(0, 3))):
            self._distract()
        self._add(f'You go {self._pick(DIRECTIONS)} .')


class Instruction(Drawn):
    """The documents of a split as a corpus; see `data.corpus.Corpus`."""

    vocabulary = staticmethod(vocabulary)

    def __getitem__(self, index: int) -> TokenizedDocument:
        walk = _Walk(self._random(index), self._settings)
        for _ in range(self._settings['locations']):
            walk.visit()
        tokens, scored = [], []
        text = int(self._split == 'train' and self._settings['train_on_text'])
        for line, executes in walk.lines:
            ids = self.tokenizer.ids(line)
            tokens += ids
            scored += [1] * (len(ids) - 1) + [2] if executes else [text] * len(ids)
        return TokenizedDocument(
            tokens=np.asarray(tokens, np.int32), num_bytes=0, scored=np.asarray(scored, np.uint8)
        )
