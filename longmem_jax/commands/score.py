"""`--mode=score`: the loss of every token of a given text, or of the texts of a file."""

import contextlib
import csv
import json
import math
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError, number_of, visible
from longmem_jax.evaluation.likelihood import windows
from longmem_jax.evaluation.token_losses import TokenLosses, token_losses
from longmem_jax.experiment import Experiment
from longmem_jax.files import opened, require_writable
from longmem_jax.generation import cache, memory_file
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.text import (
    NONE,
    TextStream,
    read_prompt,
    read_prompts,
    require_one_text,
    require_other,
    say_aside,
)
from longmem_jax.models.stack import context_of
from longmem_jax.reporting.waiting import Waiting

COLUMNS = ('position', 'token', 'nats', 'text')


class Scorer:
    """Scores texts with the newest parameters of a run.

    Attributes:
      model, params: the model, with the newest parameters.
      step: training steps of the parameters.
      tokenizer: of the run.
      fresh: memories at the start of a document, every leaf [1, ...].
      state: memories that every text begins with.
      before: int32 [m], tokens before every text since the last segment border.
    """

    def __init__(self, experiment: Experiment, load_state: str = '', *, mode: str = 'score'):
        """Restores the parameters.

        Args:
          load_state: file of a memory; every text then continues the text that it is of.

        Raises:
          UsageError: several processes, no checkpoint, or a memory of another model.
        """
        sharding.require_one_process(f'--mode={mode}')
        self.params, self.step = newest_parameters(experiment, say_aside)
        self.model, self.tokenizer = experiment.evaluation_model, experiment.tokenizer
        self._longest, self._loaded = 0, bool(load_state)
        conventions = experiment.conventions()
        say_aside(conventions.in_words(self.tokenizer))
        if not load_state:  # its length is chosen with the text
            self.model = cache.for_texts(self.model, 0)
        self.fresh = fresh_state(self.model, self.params, 1)
        self.state, self.before = self.fresh, np.asarray(conventions.begin, np.int32)
        if load_state:
            about = memory_file.described(self.model)
            self.state, pending = memory_file.load(load_state, self.fresh, about, self.params)
            self.before = np.asarray(pending[0], np.int32)

    def fit(self, longest: int) -> None:
        """Makes a decoder's cache as long as texts of `longest` tokens need, and says what it takes."""
        if longest <= self._longest or not cache.has_cache(self.model.config):
            return
        self._longest = longest
        if not self._loaded:
            self.model = cache.for_texts(self.model, longest)
            self.state = self.fresh = fresh_state(self.model, self.params, 1)
        say_aside(cache.in_words(self.model, 1))

    def __call__(self, text: bytes, tokens: np.ndarray | None = None) -> TokenLosses:
        """The losses of a text; `tokens` are its tokens, if they are known.

        Raises:
          UsageError: it has no tokens.
        """
        tokens = self.tokenizer.encode(text) if tokens is None else tokens
        if not len(tokens):
            raise UsageError(
                'the text to score is empty; the command takes --prompt=TEXT, or --prompt=@FILE.'
            )
        parts, read, whole = [], 0, list(self._windows(tokens))
        waiting = Waiting('Scoring', len(tokens), 'tokens', out=sys.stderr)
        with contextlib.closing(waiting):
            for before, part in whole:
                for nats in token_losses(self.model, self.params, self.state, before, part):
                    parts.append(nats)
                    read += len(nats)
                    waiting.update(read)
        unscored = 0 if len(self.before) else len(self.tokenizer.decode(tokens[:1]))
        return TokenLosses(tokens, np.concatenate(parts), len(text) - unscored)

    def _windows(self, tokens: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What is read, and what is scored after it: the whole text, or windows of it."""
        context, before = context_of(self.model.config), self.before
        longest = len(before) + len(tokens) - 1
        is_long = bool(context) and longest > context and not self._loaded
        if is_long:
            say_aside(
                f'longer than the {context:,} tokens that the model reads: scored in windows of these'
            )
        self.fit(context if is_long else longest)
        if not is_long:
            yield before, tokens
            return
        if not len(before):
            yield before, tokens[:1]
            before, tokens = tokens[:1], tokens[1:]
        yield from windows(before, tokens, context)


def from_flags(
    experiment: Experiment,
    *,
    prompt: str = '',
    prompts: str = '',
    save_state: str = '',
    load_state: str = '',
    output: str = '',
) -> None:
    """`--mode=score` with the options of the command line."""
    require_one_text(prompt, prompts, save_state)
    if save_state:
        raise UsageError('--save_state with --mode=score: use --mode=generate --length=0.')
    function = score_all if prompts else score
    function(experiment, prompts or prompt, load_state=load_state, output=output)


def score(
    experiment: Experiment,
    prompt: str | bytes,
    *,
    load_state: str = '',
    output: str = '',
    out: TextIO | None = None,
) -> TokenLosses:
    """Scores one text and writes a row for each of its tokens.

    Args:
      load_state: as in `Scorer`.
      output: file for the rows: JSON lines if it ends with .jsonl, commas if with .csv, else columns
        with tabs; '' = the columns are printed.
      out: where they are printed; default stdout.

    Returns:
      The losses.

    Raises:
      UsageError: as in `Scorer`, no text, or a file that cannot be written.
    """
    if output:
        require_writable(output, f'--output={output}')
        if isinstance(prompt, str) and prompt.startswith('@'):
            require_other(output, prompt[1:])
    scorer = Scorer(experiment, load_state)
    losses = scorer(read_prompt(prompt))
    with opened(output, out or sys.stdout) as file:
        if output.endswith('.jsonl'):
            for row in rows(losses, scorer.tokenizer):
                line = json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False)
                print(line, file=file)
        elif output.endswith('.csv'):
            csv.writer(file, lineterminator='\n').writerows(
                [COLUMNS, *rows(losses, scorer.tokenizer)]
            )
        else:
            print(*COLUMNS, sep='\t', file=file)
            for *numbers, text in rows(losses, scorer.tokenizer):
                said = visible(json.dumps(text, ensure_ascii=False))
                print(*('' if n is None else n for n in numbers), said, sep='\t', file=file)
    say_aside(f'step {scorer.step:,}: {in_short(losses)}')
    return losses


def score_all(
    experiment: Experiment,
    prompts: str,
    *,
    load_state: str = '',
    output: str = '',
    out: TextIO | None = None,
) -> list[TokenLosses]:
    """Scores the texts of a file of JSON lines, each by itself, and writes a line for each.

    What all of them have together is said at the end.

    Args:
      experiment, load_state: as in `score`.
      prompts: the file; every line is an object with the field `text`.
      output: file of JSON lines: the object, with `step`, `tokens`, `bytes`, `nats_per_token`,
        `bits_per_byte` and `losses`, the nats of all tokens; '' = they are printed.
      out: where they are printed; default stdout.

    Returns:
      The losses, in order.

    Raises:
      UsageError: as in `score`, or another file.
    """
    examples = read_prompts(prompts, output)
    scorer, found = Scorer(experiment, load_state), []
    texts = [example['text'].encode('utf-8', 'replace') for example in examples]
    # All of them first: an earlier output is not replaced, and no hours are lost, by one of them.
    encoded = [scorer.tokenizer.encode(text) for text in texts]
    empty = [str(number) for number, tokens in enumerate(encoded, 1) if not len(tokens)]
    if empty:
        raise UsageError(
            f'{prompts}: nothing to score in {len(empty):,} of {len(texts):,} texts, which are empty: '
            f'number {", ".join(empty[:10])}{" ..." if len(empty) > 10 else ""}; leave them out.'
        )
    with opened(output, out or sys.stdout) as file:
        for example, text, tokens in zip(examples, texts, encoded, strict=True):
            losses = scorer(text, tokens)
            numbers = {
                'step': scorer.step,
                'tokens': losses.scored,
                'bytes': losses.num_bytes,
                'nats_per_token': _number(losses.loss),
                'bits_per_byte': _number(losses.bits_per_byte),
                'losses': [_number(each) for each in losses.nats],
            }
            print(json.dumps(example | numbers, ensure_ascii=False), file=file, flush=True)
            found.append(losses)
    total = TokenLosses(
        np.concatenate(encoded),
        np.concatenate([each.nats for each in found]),
        sum(each.num_bytes for each in found),
    )
    say_aside(f'step {scorer.step:,}, {len(found):,} texts: {in_short(total)}')
    return found


def rows(losses: TokenLosses, tokenizer: Tokenizer) -> Iterator[tuple[int, int, float | None, str]]:
    """Position, id, nats (None for nan) and text of every token.

    The text is what a token completes, so that all of them are the whole text: a character of several
    tokens is at its last one.
    """
    stream, last = TextStream(tokenizer), len(losses.tokens) - 1
    for position, (token, nats) in enumerate(zip(losses.tokens, losses.nats, strict=True)):
        text = stream.text(losses.tokens[position : position + 1])
        text += stream.text(NONE, final=True) if position == last else ''
        yield position, int(token), _number(nats), text


def in_short(losses: TokenLosses) -> str:
    """Size and scores of a text."""
    perplexity = math.exp(min(losses.loss, 700))
    first = ' (the first of a text is not scored)' if np.isnan(losses.nats[0]) else ''
    return (
        f'{number_of(losses.scored, "token")}{first}, {number_of(losses.num_bytes, "byte")}: '
        f'{losses.loss:.4f} nats/token, {losses.bits_per_byte:.4f} bits/byte, '
        f'perplexity {perplexity:,.2f}'
    )


def _number(value: Any) -> float | None:
    """A float for JSON, which has no nan; float32 with the digits that it has."""
    return float(f'{float(value):.7g}') if math.isfinite(value) else None
