"""How the texts of a checkpoint begin and end, read once for everything that reads or writes texts.

The folder of a pretrained model says it in several files; models that were trained here read every text
as their training did. What counts is what transformers does with the same folder.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.data import model_files
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import UsageError

ADD_BOS = ('auto', 'always', 'never')
# Tokens that chat templates print by name, as `tokenizer_config.json` calls them.
SPECIAL = (
    'bos_token', 'eos_token', 'unk_token', 'pad_token', 'sep_token', 'cls_token', 'mask_token',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Conventions:
    """The tokens around texts.

    Attributes:
      begin: those that stand before every text; () = a text begins with its own first token.
      first: the one before a text of which every token is scored, and before one without tokens.
      ends: those after which nothing follows; () = a text has no end of its own.
      special: names of `SPECIAL` to their texts.
      once: a text that writes `begin` itself gets no second one.
    """

    begin: tuple[int, ...]
    first: int
    ends: tuple[int, ...] = ()
    special: Mapping[str, str] = dataclasses.field(default_factory=dict)
    once: bool = False

    def read(self, tokens: np.ndarray) -> np.ndarray:
        """A text as it is read, int32 [n], n at least 1: after `begin`; see `once`."""
        begin = np.asarray(self.begin, np.int32)
        there = self.once and len(begin) and np.array_equal(tokens[: len(begin)], begin)
        whole = np.concatenate([begin[: 0 if there else None], tokens]).astype(np.int32)
        return whole if len(whole) else self.before()

    def before(self) -> np.ndarray:
        """What stands before a text of which every token is scored, int32 [n], n at least 1."""
        return np.asarray(self.begin or (self.first,), np.int32)

    def up_to_end(self, tokens: np.ndarray) -> tuple[np.ndarray, bool]:
        """The tokens, int32 [n], before the first of `ends`, and whether there was one."""
        found = np.flatnonzero(np.isin(tokens, self.ends))
        return (tokens[: found[0]], True) if len(found) else (tokens, False)

    def in_words(self, tokenizer: Tokenizer) -> str:
        """For the terminal: 'texts begin with <s> (1) and end at </s> (2)'."""

        def named(ids: tuple[int, ...]) -> str:
            name = getattr(tokenizer, 'name_of', lambda token: '')
            return ', '.join(
                f'{name(token)} ({token})' if name(token) else f'token {token}' for token in ids
            )

        begin = f'begin with {named(self.begin)}' if self.begin else 'begin with their first token'
        ends = f'end at {named(self.ends)}' if self.ends else 'have no token for their end'
        return f'texts {begin} and {ends}'


def of_training(tokenizer: Tokenizer) -> Conventions:
    """How training reads every document: after the begin token. It learns no end."""
    return Conventions((tokenizer.begin,), tokenizer.begin)


def of_run(tokenizer: Tokenizer, data: Any, trained: bool) -> Conventions:
    """The conventions of a run's texts.

    Args:
      data: `config.data`: `tokenizer.path` is the folder or the GGUF file of a pretrained model, or
        something else; `add_bos` is one of `ADD_BOS`.
      trained: whether the parameters were trained here. Then every text begins with the tokenizer's
        begin token, as every document did. The ends are those of the folder either way.

    Raises:
      UsageError: a file of the folder that cannot be read, or another `add_bos`.
    """
    if data.add_bos not in ADD_BOS:
        raise UsageError(
            f'config.data.add_bos = {data.add_bos!r}: allowed are {", ".join(ADD_BOS)}.'
        )
    folder = Path(data.tokenizer.path).expanduser()
    always = of_training(tokenizer)
    named = data.tokenizer.kind != 'bytes' and data.tokenizer.path
    found = of_folder(folder, tokenizer) if named and model_files.is_model(folder) else always
    if data.add_bos == 'never':
        return dataclasses.replace(found, begin=())
    if data.add_bos == 'always' or trained:
        return dataclasses.replace(found, begin=always.begin, first=always.first)
    return found


def of_folder(folder: Path, tokenizer: Tokenizer) -> Conventions:
    """The conventions of a pretrained model.

    A text begins with what the tokenizer itself puts there: the post-processor of `tokenizer.json`;
    without that file `add_bos_token` of `tokenizer_config.json`, by default of sentencepiece models
    only. It ends at any `eos_token_id` of `generation_config.json` and `config.json`, and at the
    `eos_token` of `tokenizer_config.json`.

    Raises:
      UsageError: a file that cannot be read.
    """
    settings = model_files.settings(folder, 'tokenizer_config.json')
    special = special_of(folder)
    begin = tuple(getattr(tokenizer, 'put_before', ()))
    if not model_files.has(folder, 'tokenizer.json') and not begin:
        adds = settings.get('add_bos_token', getattr(tokenizer, 'adds_begin', False))
        begin = (tokenizer.begin,) if adds else ()
    ends: list[int] = []
    for name in ('generation_config.json', 'config.json'):
        given = model_files.settings(folder, name).get('eos_token_id')
        given = given if isinstance(given, list) else [given]
        ends += [end for end in given if isinstance(end, int) and not isinstance(end, bool)]
    eos = _id(tokenizer, special.get('eos_token'))
    ends += [] if eos is None else [eos]
    ends = [end for end in dict.fromkeys(ends) if 0 <= end < tokenizer.vocab_size]
    separator = tokenizer.begin if eos is None or 'bos_token' in special else eos
    return Conventions(begin, separator, tuple(ends), special, once=True)


def special_of(folder: Path) -> dict[str, str]:
    """Names of `SPECIAL` to their texts, as far as `tokenizer_config.json` names them."""
    settings, special = model_files.settings(folder, 'tokenizer_config.json'), {}
    for name in SPECIAL:
        token = settings.get(name)
        token = token.get('content') if isinstance(token, dict) else token
        if isinstance(token, str):
            special[name] = token
    return special


def _id(tokenizer: Tokenizer, text: str | None) -> int | None:
    """The id of a token by its text; None if it is no single token."""
    if text is None:
        return None
    found = tokenizer.encode(text.encode())
    return int(found[0]) if len(found) == 1 else None
