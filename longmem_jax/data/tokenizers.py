"""Tokenizers: bytes, characters, words, any `tokenizers` JSON, WordPiece, sentencepiece."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from longmem_jax.files import checksum
from longmem_jax.untrusted.library import library_errors

if TYPE_CHECKING:
    import tokenizers

KINDS = ('bytes', 'characters', 'words', 'bpe', 'wordpiece', 'tokenizers', 'sentencepiece')
# The library needs about 170 bytes per character of one text.
ENCODED_CHARACTERS = 1 << 18
ENCODED_TEXTS = 4096  # short ones at a time
LARGEST_ID = 2**31 - 2  # ids are int32, and `begin` may be one more
CANNOT_ENCODE = 'config.data.tokenizer: cannot encode this text'
CANNOT_DECODE = 'config.data.tokenizer: cannot decode these tokens'
BEGIN_NAMES = ('<|endoftext|>', '<s>', '<bos>', '[BOS]', '[CLS]', '</s>')


class Tokenizer(Protocol):
    """Text to tokens and back.

    Attributes:
      vocab_size: all ids are below it.
      begin: id of the input before the first token of a document; not a target itself.
    """

    vocab_size: int
    begin: int

    def encode(self, text: bytes) -> np.ndarray:
        """Tokens, int32 [n]."""

    def decode(self, tokens: np.ndarray) -> bytes:
        """Text of tokens, int32 [n]; nothing for `begin`."""

    def fingerprint(self) -> str:
        """Checksum of kind and vocabulary; a model works with one fingerprint only."""


def _checksum(kind: str, vocabulary: bytes) -> str:
    return f'{kind}-{checksum(vocabulary)[:16]}'


class Bytes:
    """The 256 bytes, and one more id for the beginning."""

    vocab_size = 257
    begin = 256

    def encode(self, text: bytes) -> np.ndarray:
        """Every byte is a token."""
        return np.frombuffer(text, np.uint8).astype(np.int32)

    def decode(self, tokens: np.ndarray) -> bytes:
        """The bytes of tokens below 256."""
        tokens = np.asarray(tokens)
        return tokens[tokens < 256].astype(np.uint8).tobytes()

    def fingerprint(self) -> str:
        """The same for all byte tokenizers."""
        return _checksum('bytes', b'')


class Characters:
    """Unicode characters; unknown ones become the replacement character."""

    UNKNOWN = '\ufffd'

    def __init__(self, vocabulary: list[str]):
        """`vocabulary`: characters in the order of their ids."""
        self._characters = vocabulary
        self._ids = {character: i for i, character in enumerate(vocabulary)}
        if self.UNKNOWN not in self._ids:
            self._ids[self.UNKNOWN] = len(vocabulary)
            self._characters = [*vocabulary, self.UNKNOWN]
        self.begin, self.unknown = len(self._characters), self._ids[self.UNKNOWN]
        self.vocab_size = self.begin + 1

    def encode(self, text: bytes) -> np.ndarray:
        """One token per character of UTF-8 text."""
        points = np.frombuffer(text.decode('utf-8', 'replace').encode('utf-32-le'), np.uint32)
        unique, inverse = np.unique(points, return_inverse=True)
        ids = [self._ids.get(chr(point), self.unknown) for point in unique]
        return np.asarray(ids, np.int32)[inverse] if len(points) else np.zeros((0,), np.int32)

    def decode(self, tokens: np.ndarray) -> bytes:
        """UTF-8 of the characters."""
        known = (self._characters[t] for t in np.asarray(tokens) if t < len(self._characters))
        return ''.join(known).encode()

    def fingerprint(self) -> str:
        """Checksum of the characters."""
        return _checksum('characters', json.dumps(self._characters).encode())


class Words:
    """Words separated by white space, with `<eos>` at every line end, as WikiText is read.

    `<eos>` is also the begin token. Unknown words become `<unk>`.
    """

    END, UNKNOWN = '<eos>', '<unk>'

    def __init__(self, vocabulary: list[str]):
        """`vocabulary`: words by falling frequency, as adaptive softmax needs them."""
        words = list(vocabulary)
        words += [special for special in (self.END, self.UNKNOWN) if special not in set(words)]
        self._words, self._ids = words, {word: i for i, word in enumerate(words)}
        self.begin, self.vocab_size = self._ids[self.END], len(words)
        self.unknown = self._ids[self.UNKNOWN]

    def encode(self, text: bytes) -> np.ndarray:
        """Ids of the words and line ends."""
        ids: list[int] = []
        lines = text.decode('utf-8', 'replace').split('\n')
        if not lines[-1]:
            lines.pop()  # there is no text after the last line end
        for line in lines:
            ids.extend(self._ids.get(word, self.unknown) for word in line.split())
            ids.append(self.begin)
        return np.asarray(ids, np.int32)

    def decode(self, tokens: np.ndarray) -> bytes:
        """Words joined by blanks, `<eos>` as a new line."""
        words = (self._words[t] if t < len(self._words) else '' for t in np.asarray(tokens))
        return ''.join('\n' if w == self.END else f'{w} ' for w in words).encode()

    def fingerprint(self) -> str:
        """Checksum of the words in order."""
        return _checksum('words', '\n'.join(self._words).encode())


class FromJson:
    """Any tokenizer of the `tokenizers` library."""

    def __init__(self, tokenizer: 'tokenizers.Tokenizer', begin: str = ''):
        """Takes a tokenizer that is loaded or trained, and turns its truncation and padding off.

        Args:
          tokenizer: of the library.
          begin: the token before a document; '' = the first of `BEGIN_NAMES` that it has.

        Raises:
          ValueError: it has no token `begin`, no tokens at all, or ids that no int32 holds.
        """
        tokenizer.no_truncation()  # files made for classifiers cut every text at 512 tokens
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        # Ids may have gaps, so the number of tokens is not a bound.
        self._size = max(tokenizer.get_vocab().values(), default=-1) + 1
        if not 0 < self._size <= LARGEST_ID:
            raise ValueError(f'{self._size} ids; from 1 to {LARGEST_ID} are possible')
        names = (begin,) if begin else BEGIN_NAMES
        known = (tokenizer.token_to_id(name) for name in names)
        found = next((i for i in known if i is not None), None)
        if begin and found is None:
            raise ValueError(
                f'tokenizer_config.json names bos_token {begin!r}, which the tokenizer does not have'
            )
        self.begin = self._size if found is None else found
        self.vocab_size = max(self._size, self.begin + 1)
        name = getattr(tokenizer.model, 'unk_token', None)
        self.unknown = tokenizer.token_to_id(name) if name else None

    @property
    def put_before(self) -> tuple[int, ...]:
        """Ids that the tokenizer's own post-processor puts before a text."""
        with library_errors(CANNOT_ENCODE):
            found = self._tokenizer.encode('a')
        added = [*found.special_tokens_mask, 0]
        return tuple(found.ids[: added.index(0)])

    def name_of(self, token: int) -> str:
        """The text of an id in the vocabulary, '' if it has none."""
        return self._tokenizer.id_to_token(token) or ''

    def token_id(self, token: str) -> int | None:
        """The id of a token such as '[SEP]'; None if there is none."""
        return self._tokenizer.token_to_id(token)

    def _ids(self, text: str) -> np.ndarray:
        with library_errors(CANNOT_ENCODE):
            return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def _border(self, text: str, start: int) -> int:
        """End of the part of `text` that begins at `start`: after a line, or before a blank.

        A cut must not change the ids around it. Tokenizers that prepend something to every text may
        allow no cut; then a long text is not split.
        """
        end = start + ENCODED_CHARACTERS
        for _ in range(32):
            line, blank = text.find('\n', end, end + 10_000), text.find(' ', end + 1, end + 10_000)
            end = line + 1 if line >= 0 else blank
            if not 0 < end < len(text):
                break
            left, right = text[max(end - 200, start) : end], text[end : end + 200]
            cut_ids = np.concatenate([self._ids(left), self._ids(right)])
            if np.array_equal(cut_ids, self._ids(left + right)):
                return end
        return len(text)

    def encode(self, text: bytes) -> np.ndarray:
        """Ids of UTF-8 text, without special tokens; long texts in parts, to bound the memory."""
        characters, ids, start = text.decode('utf-8', 'replace'), [np.zeros((0,), np.int32)], 0
        while start < len(characters):
            end = self._border(characters, start)
            ids.append(self._ids(characters[start:end]))
            start = end
        return np.concatenate(ids)

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of every text as by `encode`; on all cores, so that short texts take less time."""
        ids = []
        for start in range(0, len(texts), ENCODED_TEXTS):
            part = list(texts[start : start + ENCODED_TEXTS])
            with library_errors(CANNOT_ENCODE):
                found = self._tokenizer.encode_batch_fast(part, add_special_tokens=False)
            ids += [np.asarray(each.ids, np.int32) for each in found]
        return ids

    def encode_with_places(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a text as by `encode`, and where they are in it.

        Returns:
          Ids, int32 [n], and the first character and the one after the last of each, int32 [n, 2].
        """
        with library_errors(CANNOT_ENCODE):
            found = self._tokenizer.encode(text, add_special_tokens=False)
        places = np.asarray(found.offsets, np.int32).reshape(-1, 2)
        return np.asarray(found.ids, np.int32), places

    def decode(self, tokens: np.ndarray) -> bytes:
        """UTF-8 text of ids."""
        ids = [int(t) for t in np.asarray(tokens) if t != self.begin and t < self._size]
        with library_errors(CANNOT_DECODE):
            return self._tokenizer.decode(ids).encode()

    def fingerprint(self) -> str:
        """Checksum of vocabulary, merges and rules: equal vocabularies can split text differently."""
        return _checksum('tokenizers', self._tokenizer.to_str().encode())


class SentencePiece:
    """A sentencepiece model."""

    # transformers puts the begin token before a text unless a file says otherwise
    adds_begin = True

    def __init__(self, model: bytes):
        """`model`: the serialized model; `ValueError` if it has no pieces."""
        import sentencepiece

        if not model:  # the library takes nothing for a model
            raise ValueError('it is empty')
        self._model = model
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        size, begin = self._pieces.vocab_size(), self._pieces.bos_id()
        if size < 1 or begin >= size:
            raise ValueError(f'it has {size} pieces')
        self._pieces.decode(list(self._pieces.encode('a')))  # a damaged model fails here
        self.begin = begin if begin >= 0 else size
        self.vocab_size, self.unknown = max(size, self.begin + 1), self._pieces.unk_id()

    def encode(self, text: bytes) -> np.ndarray:
        """Ids of UTF-8 text; line ends are kept if the model knows them."""
        with library_errors(CANNOT_ENCODE):
            return np.asarray(self._pieces.encode(text.decode('utf-8', 'replace')), np.int32)

    def decode(self, tokens: np.ndarray) -> bytes:
        """UTF-8 text of ids."""
        size = self._pieces.vocab_size()
        ids = [int(t) for t in np.asarray(tokens) if t != self.begin and t < size]
        with library_errors(CANNOT_DECODE):
            return self._pieces.decode(ids).encode()

    def fingerprint(self) -> str:
        """Checksum of the model."""
        return _checksum('sentencepiece', self._model)
