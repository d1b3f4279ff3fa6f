"""Continues texts with the newest parameters of a run; what the commands for one and for many share."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError, number_of, visible
from longmem_jax.experiment import Experiment
from longmem_jax.generation import cache
from longmem_jax.generation import memory_file as state_file
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.generation.text import (
    NONE,
    TextStream,
    say_aside,
)
from longmem_jax.models.stack import context_of, has_table
from longmem_jax.reporting.waiting import Waiting

SHOWN = 40  # characters of the end of a prompt


Template = Callable[[bytes], bytes]


class Writer:
    """Continues texts with the newest parameters of a run."""

    def __init__(
        self,
        experiment: Experiment,
        options: dict[str, Any],
        *,
        load_state: str = '',
        template: Template | None = None,
        keeps: bool = False,
    ):
        """Restores the parameters; the arguments are those of `generate`.

        With `keeps` the memory is saved, so a decoder's cache is as long as its config says.
        """
        sharding.require_one_process('--mode=generate')
        self.settings = experiment.config.generate.to_dict() | options
        self.params, self.step = newest_parameters(experiment, say_aside)
        self.model, self.tokenizer = experiment.evaluation_model, experiment.tokenizer
        self.about = state_file.described(self.model)
        self.memory = None
        if load_state:
            fresh = fresh_state(self.model, self.params, 1)
            self.memory = state_file.load(load_state, fresh, self.about, self.params)
        self._fixed, self._longest = bool(keeps or load_state), 0
        self._template, self._conventions = template, experiment.conventions()
        say_aside(self._conventions.in_words(self.tokenizer))

    def tokens(self, text: bytes) -> tuple[np.ndarray, int]:
        """The tokens of a prompt as it is read, int32 [n], and how many of them begin any text."""
        if self._template is not None:
            text = self._template(text)
        tokens = own = self.tokenizer.encode(text)
        # A template writes the first token itself, if the model has one.
        if self.memory is None and (self._template is None or not tokens.size):
            tokens = self._conventions.read(tokens)
        return tokens, tokens.size - own.size

    def read(self, text: bytes) -> tuple[Reader, str]:
        """A reader that has read a prompt, and in words what it has read."""
        tokens, begun = self.tokens(text)
        self.fit(tokens.size)
        reader = Reader(self.model, self.params, *(self.memory or ()))
        if tokens.size:
            waiting = Waiting('Reading the prompt', tokens.size, 'tokens', out=sys.stderr)
            with contextlib.closing(waiting):
                for count in reader.read_in_parts(tokens[None].astype(np.int32)):
                    waiting.update(count)
        own = tokens.size - begun
        said = f'{number_of(own, "prompt token")} read'
        if begun:
            said += f' after {"the begin token" if begun == 1 else f"{begun} begin tokens"}'
        if text and self._template is None:
            said += f'; the text goes on from {visible(_last(text))}'
        return reader, said

    def fit(self, size: int, lanes: int = 1, where: str = '') -> None:
        """Makes a decoder's cache as long as prompts of `size` tokens need, and says what they take.

        `where` begins the message of an error.

        Raises:
          UsageError: the model has no positions for the prompt and what follows it.
        """
        config, length = self.model.config, self.settings['length']
        if not cache.has_cache(config):
            return
        context, longest = context_of(config), size + length
        if self.memory is not None:
            state, pending = self.memory
            longest += pending.shape[1] + (int(state.position[0]) if has_table(config) else 0)
        if context and has_table(config) and longest > config.num_positions:
            others = ', those in the memory included' if self.memory else ''
            raise UsageError(
                f'{where}{size:,} prompt tokens and --length={length}: this model has positions for '
                f'{config.num_positions:,} tokens in all{others}; '
                'give a shorter prompt or --length, or a memory, which reads texts of any length.'
            )
        if context and longest > context:
            say_aside(
                f'longer than the {context:,} tokens that the model sees: of these it sees the last'
            )
        if longest <= self._longest:
            return
        self._longest = longest
        if not self._fixed:
            self.model = cache.for_texts(self.model, longest, in_one_segment=lanes)
        say_aside(cache.in_words(self.model, lanes, drawn=True))

    def pieces(self, reader: Reader) -> Iterator[str]:
        """The text that follows, as it is written."""
        stream = TextStream(self.tokenizer)
        for tokens in _continuation(reader, self.settings, self.tokenizer, self._conventions.ends):
            yield stream.text(tokens)
        yield stream.text(NONE, final=True)


def _last(text: bytes) -> str:
    """The last characters of a prompt, quoted, as what is written begins in the middle of its line."""
    whole = text.decode('utf-8', 'replace')
    return repr(whole) if len(whole) <= SHOWN else f'...{whole[-SHOWN:]!r}'


def _continuation(
    reader: Reader, settings: dict[str, Any], tokenizer: Tokenizer, ends: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """Tokens as they are found, int32 [n], up to the first of `ends`, which is not among them."""
    common = dict(vocab_size=tokenizer.vocab_size)
    if settings['beams']:
        yield reader.search(
            settings['length'],
            ends=ends or (tokenizer.begin,),
            beams=settings['beams'],
            length_penalty=settings['length_penalty'],
            **common,
        )[0]
        return
    drawn = ('temperature', 'top_k', 'top_p', 'seed')
    # One at a time where the text may end, so that nothing after the end is remembered.
    common |= {name: settings[name] for name in drawn} | (dict(chunk=1) if ends else {})
    for tokens in reader.write(settings['length'], **common):
        if ends and tokens[0, 0] in ends:
            return
        yield tokens[0]
