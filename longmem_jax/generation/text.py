"""Text in and out of a model: prompts, decoding of tokens as they are drawn, a sample."""

import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.data.json_lines import read_examples
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.files import require_writable
from longmem_jax.generation.reader import Reader
from longmem_jax.models.language_model import LanguageModel

NONE = np.zeros((0,), np.int32)


def say_aside(line: str) -> None:
    """Prints a line beside a text that goes to stdout."""
    print(f'[{line}]', file=sys.stderr, flush=True)


def require_one_text(prompt: str, prompts: str, save_state: str) -> None:
    """Raises `UsageError` if the prompts of a file, each by itself, do not go with other options."""
    if prompts and (prompt or save_state):
        raise UsageError(
            '--prompts with --prompt or --save_state: every prompt of a file is read by itself, and '
            'leaves no memory; give --prompts alone, or --prompt.'
        )


def require_other(output: str, source: str) -> None:
    """Raises `UsageError` if the file to write is the one that is read."""
    written, read = (Path(name).expanduser() for name in (output, source))
    if written.exists() and read.exists() and written.samefile(read):
        raise UsageError(f'--output={output}: is the file that is read; name another.')


def require_one_way(options: Mapping[str, Any]) -> None:
    """Raises `UsageError` if options of drawing are given together with those of a search."""
    drawn = [name for name in ('temperature', 'top_k', 'top_p', 'seed') if name in options]
    if options.get('beams') and drawn:
        raise UsageError(
            f'beams = {options["beams"]} with {", ".join(drawn)}: a search finds the most likely text '
            'and draws nothing; leave one or the other out.'
        )


def read_prompt(prompt: str | bytes, flag: str = '--prompt') -> bytes:
    """The bytes of a prompt: bytes as they are; of text, '@FILE' is the text of a file.

    Says if it is the name of a file without @. `flag` is what the user gave it by.

    Raises:
      UsageError: the file cannot be read.
    """
    if isinstance(prompt, bytes):
        return prompt
    if not prompt.startswith('@'):
        if named_file(prompt):
            say_aside(f'{flag}={prompt} is the name of a file; {flag}=@FILE reads what is in it')
        return os.fsencode(prompt)  # bytes of the command line that are not UTF-8 stay as they are
    try:
        return Path(prompt[1:]).read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f'{flag}={prompt}: cannot be read ({error}).') from error


def named_file(prompt: str | bytes) -> bool:
    """Whether a prompt of one line is the name of a file, whose text was perhaps meant."""
    return isinstance(prompt, str) and '\n' not in prompt and os.path.isfile(prompt[:4096])


def read_prompts(prompts: str, output: str) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines with the field `text`, which are written to `output`.

    Raises:
      UsageError: the file cannot be read, or `output` not be written or named for columns.
    """
    if output.lower().endswith('.tsv'):
        raise UsageError(f'--output={output} with --prompts: JSON lines; end the name with .jsonl.')
    if output:
        require_writable(output, f'--output={output}')
        require_other(output, prompts)
    return read_examples(Path(prompts).expanduser(), {'text': str})


class TextStream:
    """Decodes tokens as they arrive; a character waits for all of its tokens.

    What is given out, joined, is the decoded text of all tokens. A tokenizer writes U+FFFD for a
    character that is not whole, so text that ends in it is held back until tokens complete it.
    """

    CONTEXT = 16  # earlier tokens decoded again with new ones, since spaces depend on what precedes
    PATIENCE = 8  # tokens after which what is no character is given out; one has at most 4 bytes

    def __init__(self, tokenizer: Tokenizer):
        """Starts a text of `tokenizer`'s tokens."""
        self._tokenizer = tokenizer
        self._earlier: list[list[int]] = []  # groups of tokens that end with a whole character
        self._before = 0  # characters of the earlier tokens
        self._open: list[int] = []  # tokens since then
        self._shown = 0  # characters of theirs that were given out
        self._waited = 0  # tokens since the last character

    def text(self, tokens: np.ndarray, *, final: bool = False) -> str:
        """The complete characters of new tokens, int32 [n]; `final` also returns incomplete ones."""
        pieces = [self._next(int(token)) for token in tokens]
        if final and self._open:
            pieces.append(self._new()[self._shown :])
            self._close()
        return ''.join(pieces)

    def _next(self, token: int) -> str:
        """What one more token completes."""
        self._open.append(token)
        new = self._new()
        whole = new.rstrip('\ufffd')
        self._waited = 0 if len(whole) > self._shown else self._waited + 1
        if self._waited >= self.PATIENCE:
            whole = new
        piece, self._shown = whole[self._shown :], max(self._shown, len(whole))
        if new and len(whole) == len(new):
            self._close()
        elif not new:  # tokens without a text, such as that of the beginning
            del self._open[: -self.PATIENCE]
        return piece

    def _new(self) -> str:
        """The text that the open tokens add to the earlier ones."""
        return self._decoded([*itertools.chain.from_iterable(self._earlier), *self._open])[
            self._before :
        ]

    def _decoded(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(np.asarray(tokens, np.int32)).decode('utf-8', 'replace')

    def _close(self) -> None:
        """The open tokens are whole characters: they become the context of the next ones."""
        self._earlier.append(self._open)
        while len(self._earlier) > 1 and sum(map(len, self._earlier)) > self.CONTEXT:
            self._earlier.pop(0)
        self._before = len(self._decoded([*itertools.chain.from_iterable(self._earlier)]))
        self._open, self._shown, self._waited = [], 0, 0


def sample_text(model: LanguageModel, params: Any, tokenizer: Tokenizer, settings: Any) -> str:
    """Generates `settings.sample_length` tokens without a prompt; `settings` is `config.generate`."""
    reader = Reader(model, params)
    reader.read(np.asarray([[tokenizer.begin]], np.int32))
    stream = TextStream(tokenizer)
    chunks = reader.write(
        settings.sample_length,
        vocab_size=tokenizer.vocab_size,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
    )
    return ''.join([stream.text(chunk[0]) for chunk in chunks] + [stream.text(NONE, final=True)])
