"""Tokenizers that know a few words, for tests of lifelong learning."""

import tokenizers

from longmem_jax.data.learn_tokenizer import MARKS
from longmem_jax.data.tokenizers import FromJson


def word_tokenizer(*words, marks=MARKS):
    """A WordPiece tokenizer that knows these words; others are spelled."""
    letters = [chr(i) for i in range(97, 123)] + list("0123456789.,?!$-'")
    pieces = [*marks, *letters, *(f'##{x}' for x in letters), *dict.fromkeys(words)]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=marks[1]))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return FromJson(made)


def words_of(tokenizer, tokens):
    """The pieces of a row of tokens, without what is no token."""
    return [
        tokenizer._tokenizer.id_to_token(int(token))
        for token in tokens
        if 0 <= int(token) < tokenizer.vocab_size
    ]
