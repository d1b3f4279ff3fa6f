"""Pretraining of a small encoder: what is hidden, that it learns, and the folder that it leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.errors import UsageError
from longmem_jax.hosts import hosts
from longmem_jax.lifelong import encoders, pretrain, pretrain_encoder
from longmem_jax.lifelong.rows import Inputs
from tests.lifelong.small import small_config
from tests.lifelong.words import word_tokenizer

SPECIAL = pretrain.Special(mask=4, others=(0, 1, 2, 3, 4), vocab_size=60)
SIZES = dict(encoders.SMALL) | dict(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)


def quiet(line):
    pass


def test_what_is_hidden():
    """15 % of the tokens of every text, of which 80 % are masked and 10 % are others."""
    random = np.random.default_rng(0)
    tokens = random.integers(5, 60, (400, 40)).astype(np.int32)
    lengths = np.where(np.arange(400) % 2, 40, 12)
    valid = np.arange(40)[None] < lengths[:, None]
    tokens[:, 0], tokens[np.arange(400), lengths - 1] = 2, 3
    texts = Inputs(jnp.asarray(np.where(valid, tokens, 0)), jnp.asarray(valid), None)
    found = jax.jit(lambda key: pretrain.mask(key, texts, SPECIAL, 0.15))(jax.random.key(0))
    there = np.asarray(found.there)
    # 38 tokens that are text, and 10.
    np.testing.assert_array_equal(there.sum(axis=1), np.where(lengths == 40, 6, 2))
    rows, columns = np.nonzero(there)
    places = np.asarray(found.places)[rows, columns]
    assert len(set(zip(rows, places, strict=True))) == len(rows), 'a place twice'
    old, new = tokens[rows, places], np.asarray(found.tokens)[rows, places]
    np.testing.assert_array_equal(old, np.asarray(found.targets)[rows, columns])
    assert (old > 4).all() and (places < lengths[rows] - 1).all() and (places > 0).all()
    assert abs((new == 4).mean() - 0.8) < 0.03 and abs((new == old).mean() - 0.1) < 0.03
    untouched = np.ones_like(valid)
    untouched[rows, places] = False
    np.testing.assert_array_equal(
        np.asarray(found.tokens)[untouched], np.asarray(texts.tokens)[untouched]
    )


def test_a_text_of_marks_alone_hides_nothing():
    texts = Inputs(jnp.asarray([[2, 3, 0, 0]]), jnp.asarray([[True, True, False, False]]), None)
    found = pretrain.mask(jax.random.key(0), texts, SPECIAL, 0.5)
    assert not found.there.any()
    np.testing.assert_array_equal(found.tokens, texts.tokens)


TOPICS = ('cat dog cow', 'red blue pink', 'one two six')


def topic_texts(count, seed=0):
    """Texts of six words of one topic each."""
    random = np.random.default_rng(seed)
    words = [topic.split() for topic in TOPICS]
    return [' '.join(random.choice(words[i % 3], 6)) for i in range(count)]


@pytest.mark.slow
def test_it_learns_the_words_of_a_text_and_the_pooled_vector_tells_them(tmp_path):
    texts = topic_texts(300)
    settings = pretrain.SETTINGS | dict(
        vocab_size=257, max_length=8, num_steps=150, batch=32, learning_rate=5e-3
    )
    lines = []
    names = pretrain.pretrain(texts, str(tmp_path / 'encoder'), settings, SIZES, lines.append)
    assert {'config.json', 'model.safetensors', 'tokenizer.json', 'README.md'} == set(names)
    assert [path.name for path in tmp_path.iterdir()] == ['encoder'], 'something was left'
    masked, bag = (float(lines[-1].split(' nats')[0].split()[-1]), float(lines[-1].split()[-7]))
    # One of three words: ln 3 = 1.10 nats.
    assert masked < 1.5 and bag < 1.5, lines[-1]
    # The folder is a BERT's, with the vocabulary that it was trained with.
    host = hosts.find(tmp_path / 'encoder')
    assert host.plain.kind == 'text_encoder' and host.plain.text_encoder.pooler
    encoder = encoders.from_folder(str(tmp_path / 'encoder'), 8, report=lines.append)
    params = encoder.init(jax.random.key(0))
    assert 'new: nothing; ignored: nothing' in lines[-1]
    tokenizer = load_tokenizer('tokenizers', tmp_path / 'encoder')
    tokens = jnp.asarray(pretrain.rows_of(topic_texts(60, seed=1), tokenizer, 8).astype(np.int32))
    inputs = Inputs(tokens, jnp.ones(tokens.shape, bool), jnp.zeros_like(tokens))
    keys = np.asarray(jax.jit(encoder.key_of)(params, inputs), np.float64)
    distances = ((keys[:, None] - keys[None]) ** 2).sum(-1) + 1e9 * np.eye(60)
    nearest = distances.argmin(axis=1)
    assert (nearest % 3 == np.arange(60) % 3).mean() > 0.95, 'neighbours of another topic'


def test_long_texts_are_several_rows():
    tokenizer = word_tokenizer('one', 'two')
    rows = pretrain.rows_of(['one two ' * 5, 'one'], tokenizer, 8)
    assert rows.shape == (3, 8)
    with pytest.raises(UsageError, match='no text to pretrain on'):
        pretrain.rows_of([' '], tokenizer, 8)


def test_problems(tmp_path):
    settings = pretrain.SETTINGS
    with pytest.raises(UsageError, match='share = 2'):
        pretrain.pretrain(['a'], str(tmp_path / 'e'), settings | dict(share=2.0))
    with pytest.raises(UsageError, match='no text to pretrain on'):
        pretrain.pretrain([], str(tmp_path / 'e'), settings)
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full' / 'x').write_text('')
    with pytest.raises(UsageError, match='already has files'):
        pretrain.pretrain(['a'], str(tmp_path / 'full'), settings)
    with pytest.raises(UsageError, match=r'has no \[MASK\]'):
        pretrain.special_of(word_tokenizer(marks=['[PAD]', '[UNK]', '[CLS]', '[SEP]']))


@pytest.mark.slow
def test_the_command_reads_what_the_stream_shows(tmp_path, capsys):
    config = small_config(tmp_path)
    output = str(tmp_path / 'encoder')
    pretrain_encoder.run(config, output, steps=1, batch=2)
    assert '100 texts, ' in capsys.readouterr().out
    assert hosts.find(output).plain.d_model == 16
    with pytest.raises(UsageError, match='--folder= is missing'):
        pretrain_encoder.run(config, '', steps=2, batch=2)
    config.data.task.rows = 0
    with pytest.raises(UsageError, match='config.data.task.rows = 0'):
        pretrain_encoder.run(config, str(tmp_path / 'other'), steps=2, batch=2)
