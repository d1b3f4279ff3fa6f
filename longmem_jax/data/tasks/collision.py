"""Object collision: where did particles of these two colours last meet? (Sukhbaatar et al., 2021).

Two particles move on a grid, bounce, and sometimes change colour. Every step asks for an ordered pair of
colours; the answer is the quadrant of their last collision, which may be tens of thousands of tokens
ago. Rules and defaults are those of the released generator; all documents of a split are simulated
together, one document per lane.

Two easier versions ask for the quadrant of the last collision, or of the last three, and show no
colours.
"""

import functools
from typing import Any

import numpy as np

from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.documents import SPLITS
from longmem_jax.data.tasks.drawn import Drawn
from longmem_jax.data.tasks.vocabulary import Vocabulary

QUESTIONS = ('colours', 'last', 'last_three')
EASY = ('present', 'last_collision')
FIELDS = dict(
    documents=(1, 10**6),  # simulations for training; as many as lanes
    steps=(1, 10**8),  # of each; a step is 8 tokens, or 5 in the easier versions
    eval_documents=(1, 10**6),
    eval_steps=(1, 10**8),
    question=QUESTIONS,
    easy_question=EASY,  # 'present' colours in the released code, 'last_collision' in the paper
    easy_share=(0.0, 1.0),  # of questions
    size=(4, 64),  # cells per side
    num_colours=(1, 32),
    speed=(0.0, 10.0),  # standard deviation per axis, cells per step
    recolour=(0.0, 1.0),  # probability per particle and step
)
CHUNK = 256  # steps whose random numbers are drawn together


def vocabulary(settings: Any) -> Vocabulary:
    """Words of the stream; ids 0 .. 4 (or 0 .. 63) are also labels, as in the released data."""
    size, colours = settings['size'], settings['num_colours']
    words = [f'row{i}' for i in range(size)] + [f'column{i}' for i in range(size)]
    if settings['question'] == 'colours':
        words += [f'colour{i}' for i in range(colours)] + [f'ask{i}' for i in range(colours)]
    else:
        words += ['ask']
    words += ['<unk>', '<eos>']
    words += [f'answer{i}' for i in range(len(words), 64) if settings['question'] == 'last_three']
    return Vocabulary(words, '<eos>')


def _width(settings: Any) -> int:
    """Tokens of a step."""
    return 8 if settings['question'] == 'colours' else 5


class _World:
    """Two particles in each of `count` simulations.

    Attributes:
      position, velocity: float64 [2, count, 2], particles first, cells and cells per step.
      colour: int64 [2, count].
    """

    def __init__(self, random: np.random.Generator, count: int, settings: Any):
        self.random, self.count = random, count
        self.limit = settings['size'] - 1
        self.speed = settings['speed']
        self.position = random.uniform(0, self.limit, (2, count, 2))
        self.velocity = random.normal(0, self.speed, (2, count, 2))
        self.colour = random.integers(0, settings['num_colours'], (2, count))

    def _outside(self, particle: int) -> tuple[np.ndarray, np.ndarray]:
        """Next positions of a particle, [count, 2], and which are outside of the grid, bool [count]."""
        ahead = self.position[particle] + self.velocity[particle]
        return ahead, ~((ahead > 0) & (ahead < self.limit)).all(axis=1)

    def step(self, changes: np.ndarray, colours: np.ndarray) -> np.ndarray:
        """Moves both particles and repaints some.

        `changes` bool [2, count], and `colours` int [2, count]. Returns the cells of the particles,
        int64 [2, count, 2].
        """
        for particle in (0, 1):
            ahead, outside = self._outside(particle)
            while outside.any():
                where = np.flatnonzero(outside)
                drawn = self.random.normal(0, self.speed, (len(where), 2))
                self.velocity[particle, where] = drawn
                ahead, outside = self._outside(particle)
            self.position[particle] = ahead
        self.colour = np.where(changes, colours, self.colour)
        return np.rint(self.position).astype(np.int64)


def simulate(
    settings: Any, count: int, steps: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Runs `count` simulations of `steps` steps in parallel.

    Returns frames, uint8 [count, steps, tokens], with the question last, and labels, uint8 [count,
    steps]; no answer is 0 for 'colours', 255 for the easier versions.
    """
    size, colours = settings['size'], settings['num_colours']
    asks_colours = settings['question'] == 'colours'
    present = settings['easy_question'] == 'present'
    world = _World(random, count, settings)
    lanes = np.arange(count)
    history = np.zeros((count, colours * colours), np.uint8)  # label of the last collision
    last = np.full((2, count), -1)  # colours of the last collision
    quadrants = np.full((3, count), -1)  # of the last three, oldest first
    frames = np.zeros((count, steps, _width(settings)), np.uint8)
    labels = np.zeros((count, steps), np.uint8)
    half = size // 2
    for begin in range(0, steps, CHUNK):
        chunk = min(CHUNK, steps - begin)
        changes = random.random((chunk, 2, count)) < settings['recolour']
        painted = random.integers(0, colours, (chunk, 2, count))
        easy = random.random((chunk, count)) < settings['easy_share']
        asked = random.integers(0, colours, (chunk, 2, count))
        for k in range(chunk):
            cells = world.step(changes[k], painted[k])
            met = np.flatnonzero((cells[0] == cells[1]).all(axis=1))
            if len(met):
                row, column = cells[0, met, 0], cells[0, met, 1]
                quadrant = 2 * (row >= half) + (column >= half)
                pair = world.colour[:, met]
                history[met, pair[0] * colours + pair[1]] = 1 + quadrant
                last[:, met] = pair
                quadrants[:, met] = np.stack([quadrants[1, met], quadrants[2, met], quadrant])
            frame, each = frames[:, begin + k], 3 if asks_colours else 2  # tokens of a particle
            for particle in (0, 1):
                frame[:, each * particle] = cells[particle, :, 0]
                frame[:, each * particle + 1] = size + cells[particle, :, 1]
            if asks_colours:
                # The released code stores the pair as a view of the colours, so after the first
                # collision it asks for the present colours.
                simple = np.where(last < 0, -1, world.colour) if present else last
                question = np.where(easy[k], simple, asked[k])
                frame[:, [2, 5]] = 2 * size + world.colour.T
                frame[:, 6:] = 2 * size + colours + question.T
                known = (question >= 0).all(axis=0)
                pairs = np.where(known, question[0] * colours + question[1], 0)
                labels[:, begin + k] = np.where(known, history[lanes, pairs], 0)
            else:
                frame[:, 4] = 2 * size
                if settings['question'] == 'last':
                    label = quadrants[2]
                else:
                    label = 16 * quadrants[0] + 4 * quadrants[1] + quadrants[2]
                    label = np.where(quadrants[0] < 0, -1, label)
                labels[:, begin + k] = label.astype(np.int16) & 255
    return frames, labels


class Collision(Drawn):
    """The simulations of a split as a corpus; see `data.corpus.Corpus`."""

    vocabulary = staticmethod(vocabulary)

    @property
    def _steps(self) -> int:
        return self._settings['steps' if self._split == 'train' else 'eval_steps']

    @functools.cached_property
    def _simulated(self) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng([self._seed, SPLITS.index(self._split)])
        return simulate(self._settings, self._count, self._steps, random)

    def __getitem__(self, index: int) -> TokenizedDocument:
        frames, labels = self._simulated
        asks_colours = self._settings['question'] == 'colours'
        answered = labels[index] > 0 if asks_colours else labels[index] < 255
        tokens = np.zeros(frames[index].shape, np.int32)
        tokens[:, -1] = np.where(answered, labels[index], 0)
        scored = np.zeros(tokens.shape, np.uint8)
        scored[:, -1] = 2 * answered
        return TokenizedDocument(
            tokens=tokens.reshape(-1),
            num_bytes=0,
            inputs=frames[index].astype(np.int32).reshape(-1),
            scored=scored.reshape(-1),
        )

    def lengths(self) -> np.ndarray:
        """Tokens of every document, int64 [documents]."""
        width = _width(self._settings)
        return np.full((self._count,), self._steps * width, np.int64)
