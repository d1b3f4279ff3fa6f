"""Text that is decoded while it is written is the text of all its tokens."""

import json
import random

import numpy as np
import pytest

from longmem_jax.data.documents import Document
from longmem_jax.data.learn_tokenizer import learn
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.data.tokenizers import Bytes, Characters, Words
from longmem_jax.generation.text import TextStream

TEXT = 'hello \U0001f642 w\u00f6rld \u65e5\u672c the cat \U0001f642\U0001f642 \u00e9'
LEARN = 'the cat hello w\u00f6rld sat\nthe hello \u65e5\u672c dog\n' * 20


def byte_fallback(path):
    """A tokenizer like Llama's, whose unknown characters are tokens of one byte each."""
    pieces = ['<unk>', '<s>', '\u2581', '\u2581the', '\u2581cat', *map(chr, range(97, 123))]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    vocabulary |= {f'<0x{i:02X}>': len(pieces) + i for i in range(256)}
    content = {
        'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [],
        'normalizer': {'type': 'Sequence', 'normalizers': [
            {'type': 'Prepend', 'prepend': '\u2581'},
            {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '\u2581'}]},
        'pre_tokenizer': None, 'post_processor': None,
        'decoder': {'type': 'Sequence', 'decoders': [
            {'type': 'Replace', 'pattern': {'String': '\u2581'}, 'content': ' '},
            {'type': 'ByteFallback'}, {'type': 'Fuse'},
            {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]},
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': '<unk>', 'fuse_unk': True,
                  'continuing_subword_prefix': None, 'end_of_word_suffix': None,
                  'byte_fallback': True, 'vocab': vocabulary, 'merges': []},
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return load_tokenizer('tokenizers', path)


@pytest.fixture(scope='module')
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tokenizers')
    made = {
        'bytes': Bytes(),
        'characters': Characters(sorted(set(TEXT))),
        'words': Words([*TEXT.split(), '<eos>']),
        'byte_fallback': byte_fallback(folder / 'bytes.json'),
    }
    letters = sorted({letter for letter in LEARN if letter.strip()})
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *letters, 'the', 'cat', 'wor']
    (folder / 'vocab.txt').write_text('\n'.join([*pieces, *(f'##{letter}' for letter in letters)]))
    made['wordpiece'] = load_tokenizer('wordpiece', folder)
    for kind in ('bpe', 'sentencepiece'):
        learn(kind, [Document('a', LEARN.encode())], 290, folder / kind)
        made[kind] = load_tokenizer(kind, folder / kind)
    return made


KINDS = ('bytes', 'characters', 'words', 'byte_fallback', 'bpe', 'wordpiece', 'sentencepiece')


def streamed(tokenizer, tokens, part):
    stream = TextStream(tokenizer)
    parts = [stream.text(tokens[i : i + part]) for i in range(0, len(tokens), part)]
    return ''.join([*parts, stream.text(tokens[:0], final=True)])


@pytest.mark.parametrize('part', [1, 3, 16])
@pytest.mark.parametrize('kind', KINDS)
def test_characters_of_several_tokens_come_whole(tokenizers, kind, part):
    tokenizer = tokenizers[kind]
    tokens = tokenizer.encode((TEXT * 3).encode())
    whole = tokenizer.decode(tokens).decode()
    assert streamed(tokenizer, tokens, part) == whole
    if kind not in ('words', 'wordpiece'):
        assert whole == TEXT * 3


@pytest.mark.parametrize('kind', KINDS)
def test_tokens_in_any_order_lose_no_letter(tokenizers, kind):
    """What an untrained model writes: bytes that are no characters are held back, but not for ever."""
    tokenizer, drawn = tokenizers[kind], random.Random(0)
    tokens = np.asarray([drawn.randrange(tokenizer.vocab_size) for _ in range(300)], np.int32)
    whole, shown = (
        tokenizer.decode(tokens).decode('utf-8', 'replace'),
        streamed(tokenizer, tokens, 7),
    )
    # Where bytes are no text, byte_fallback decodes none of those around them, if it has all at once.
    rest = iter(shown)
    assert all(letter in rest for letter in whole if letter.isascii() and letter.isalnum())


@pytest.mark.parametrize('kind', KINDS)
def test_a_long_stream_of_no_text_is_not_held_for_ever(tokenizers, kind):
    tokenizer, stream = tokenizers[kind], TextStream(tokenizers[kind])
    stream.text(np.full((99,), tokenizer.begin, np.int32))
    assert len(stream._open) <= TextStream.PATIENCE
    if kind == 'bytes':
        assert stream.text(np.full((99,), 255, np.int32))


def test_what_is_not_whole_comes_at_the_end():
    stream = TextStream(Bytes())
    assert stream.text(np.asarray([0xE2, 0x98])) == ''
    assert stream.text(np.zeros((0,), np.int32), final=True) == '\ufffd'
