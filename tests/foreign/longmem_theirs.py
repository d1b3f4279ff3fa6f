"""A memory and a task as a package of somebody else brings them."""

import dataclasses

import numpy as np

from longmem_jax.contract import Recipe, Recipes
from longmem_jax.data.corpus import TokenizedDocument
from longmem_jax.data.tasks.registry import Task
from longmem_jax.data.tasks.vocabulary import Vocabulary
from longmem_jax.memory import transformer_xl
from longmem_jax.problems import of_section

WORDS = ('<begin>', 'a', 'b', 'c', '?')


class TheirWindow(transformer_xl.TransformerXL):
    """Their window of hidden vectors."""


def recipe(scale):
    """A window of half of what others reach."""
    return Recipe({'theirs': dict(memory_length=max(scale.reach // 2, 1))})


ENTRY = dataclasses.replace(
    transformer_xl.ENTRY,
    name='theirs',
    layer=dataclasses.replace(transformer_xl.ENTRY.layer, module=TheirWindow),
    recipe=Recipes({'theirs': recipe}),
)


class Echo:
    """Documents of a word, a gap, a question mark, and the word again, which is scored."""

    def __init__(self, settings, split, seed):
        self._gap, self._seed = settings['gap'], [seed, len(split)]
        self.tokenizer = vocabulary(settings)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        word = int(np.random.default_rng([*self._seed, index]).integers(1, 4))
        tokens = np.asarray([word] * (self._gap + 1) + [4, word], np.int32)
        scored = np.zeros(tokens.shape, np.uint8)
        scored[-1] = 2
        return TokenizedDocument(tokens=tokens, num_bytes=0, scored=scored)

    def lengths(self):
        return np.full(len(self), self._gap + 3, np.int64)


def check(settings):
    """The gap is a number of tokens."""
    return of_section(settings, dict(gap=(1, 10**6)))


def vocabulary(settings):
    """Three words, and marks."""
    return Vocabulary(WORDS, '<begin>')


def questions(settings, inputs, asked):
    """At the question mark."""
    return asked


def first(settings, inputs, asked, begin):
    """The first word of the document."""
    chances = np.zeros((len(asked), len(WORDS)))
    chances[:, inputs[1]] = 1.0
    return chances


TASK = Task(Echo, check, vocabulary, questions, {'first': first})
