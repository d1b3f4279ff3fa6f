"""How texts begin and end: what the files of a folder say, and what training does."""

import json
import types

import numpy as np
import pytest
import tokenizers

from longmem_jax.data import conventions
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError

NAMES = ['<|endoftext|>', '<s>', '</s>', '<|im_end|>', 'a', 'b']


def made(folder, begin='', **files):
    """A folder with a tokenizer of words, whose post-processor puts `begin` before a text."""
    vocabulary = {name: number for number, name in enumerate(NAMES)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, 'b'))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(NAMES[:4])
    if begin:
        words.post_processor = tokenizers.processors.TemplateProcessing(
            single=f'{begin} $A', special_tokens=[(begin, vocabulary[begin])]
        )
    words.save(str(folder / 'tokenizer.json'))
    for name, content in files.items():
        (folder / f'{name}.json').write_text(json.dumps(content))
    return load_tokenizer('tokenizers', folder)


def data(folder, add_bos='auto', kind='tokenizers'):
    return types.SimpleNamespace(
        add_bos=add_bos, tokenizer=types.SimpleNamespace(kind=kind, path=str(folder))
    )


@pytest.mark.parametrize(
    'begin, settings, wanted',
    [
        ('<s>', dict(bos_token='<s>', eos_token='</s>'), ((1,), 1, (2,))),  # Llama
        ('', dict(bos_token='<|endoftext|>', eos_token='<|endoftext|>'), ((), 0, (0,))),  # GPT-2
        ('', dict(bos_token=None, eos_token={'content': '<|im_end|>'}), ((), 3, (3,))),  # Qwen
        ('<s>', dict(bos_token='<s>', add_bos_token=False), ((1,), 1, ())),  # as transformers 5
        ('', {}, ((), 0, ())),
    ],
)
def test_a_folder_says_how_texts_begin_and_end(begin, settings, wanted, tmp_path):
    tokenizer = made(tmp_path, begin, tokenizer_config=settings)
    found = conventions.of_run(tokenizer, data(tmp_path), trained=False)
    assert (found.begin, found.first, found.ends) == wanted
    text = tokenizer.encode(b'a b')
    assert found.read(text).tolist() == [*found.begin, 4, 5]
    assert found.read(text[:0]).tolist() == [*(found.begin or (found.first,))]
    written = tokenizer.encode(b'<s> a')  # a text that has the token already
    assert found.read(written).tolist() == [1, 4]


def test_all_ends_of_all_files_count(tmp_path):
    files = dict(generation_config=dict(eos_token_id=[3, 2, 99]), config=dict(eos_token_id=0))
    tokenizer = made(tmp_path, tokenizer_config=dict(eos_token='</s>'), **files)
    found = conventions.of_run(tokenizer, data(tmp_path), trained=False)
    assert found.ends == (3, 2, 0)
    assert found.up_to_end(np.asarray([4, 5, 2, 3]))[0].tolist() == [4, 5]
    assert not found.up_to_end(np.asarray([4, 5]))[1]
    assert found.in_words(tokenizer) == (
        'texts begin with their first token and end at <|im_end|> (3), </s> (2), <|endoftext|> (0)'
    )


def test_what_was_trained_here_reads_texts_as_training_did(tmp_path):
    tokenizer = made(tmp_path, tokenizer_config=dict(bos_token=None, eos_token='</s>'))
    found = conventions.of_run(tokenizer, data(tmp_path), trained=True)
    assert found.begin == (tokenizer.begin,) == (0,) and found.ends == (2,)
    assert conventions.of_run(tokenizer, data(tmp_path, 'always'), trained=False) == found
    assert conventions.of_run(tokenizer, data(tmp_path, 'never'), trained=True).begin == ()
    own = conventions.of_run(Bytes(), data('', kind='bytes'), trained=False)
    assert own == conventions.of_training(Bytes()) and own.begin == (256,) and not own.ends
    with pytest.raises(UsageError, match="add_bos = 'yes': allowed are auto, always, never"):
        conventions.of_run(Bytes(), data('', 'yes'), trained=False)


@pytest.mark.parametrize('adds', [True, False, None])
def test_without_a_post_processor_add_bos_token_counts(adds, tmp_path):
    made(tmp_path)
    (tmp_path / 'tokenizer.json').unlink()
    bytes_ = tokenizers.ByteLevelBPETokenizer()
    bytes_.train_from_iterator(['a b'], vocab_size=300, special_tokens=['<|endoftext|>'])
    bytes_.save_model(str(tmp_path))
    settings = {} if adds is None else dict(add_bos_token=adds)
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(settings))
    tokenizer = load_tokenizer('tokenizers', tmp_path)
    found = conventions.of_run(tokenizer, data(tmp_path), trained=False)
    assert found.begin == ((tokenizer.begin,) if adds else ())
