"""Sampling, streaming of text, and memories as files."""

import os
import re
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax import stopping
from longmem_jax.config.base import base
from longmem_jax.data.tasks.vocabulary import Vocabulary
from longmem_jax.data.tokenizers import Bytes, Words
from longmem_jax.errors import UsageError
from longmem_jax.generation import memory_file as state_file
from longmem_jax.generation import reader
from longmem_jax.generation.reader import Reader, continue_stream, fresh_state
from longmem_jax.generation.sampling import filter_logits, sample
from longmem_jax.generation.text import TextStream, read_prompts, sample_text
from longmem_jax.memory.registry import AROUND
from tests.toys import LENGTH, VOCAB, random_segments, run, toy

NONE = np.zeros((1, 0), np.int32)


def kept(logits):
    return np.isfinite(np.asarray(logits)).tolist()


def test_top_k_and_top_p():
    logits = jnp.log(jnp.asarray([[0.5, 0.3, 0.15, 0.05]]))
    assert kept(filter_logits(logits, 2, 1.0)) == [[True, True, False, False]]
    assert kept(filter_logits(logits, 0, 0.79)) == [[True, True, False, False]]
    assert kept(filter_logits(logits, 0, 0.81)) == [[True, True, True, False]]
    assert kept(filter_logits(logits, 0, 0.01)) == [[True, False, False, False]]
    assert kept(filter_logits(logits, 99, 1.0)) == [[True] * 4]
    assert kept(filter_logits(logits, 0, 0.0)) == [[True, False, False, False]]


def test_sampling_follows_temperature_and_key():
    logits = jnp.log(jnp.asarray([[0.6, 0.4]]))
    for temperature in (0.0, 1e-45, 1e-30):  # logits divided by them may be infinite
        assert sample(logits, jax.random.key(0)[None], temperature, 0, 1.0).tolist() == [0]
    draw = jax.vmap(lambda key, t: sample(logits, key[None], t, 0, 1.0)[0], in_axes=(0, None))
    keys = jax.random.split(jax.random.key(0), 4000)
    np.testing.assert_allclose(draw(keys, 1.0).mean(), 0.4, atol=0.03)
    # probabilities to the power of 2: .36 against .16
    np.testing.assert_allclose(draw(keys, 0.5).mean(), 0.16 / 0.52, atol=0.03)


def test_a_signal_is_obeyed_between_the_segments_of_a_prompt(monkeypatch):
    model, params = toy('transformer_xl')
    made, read = [], reader._read_segment

    def read_one(*args):
        if not made:
            os.kill(os.getpid(), signal.SIGINT)
        made.append(args)
        return read(*args)

    monkeypatch.setattr(reader, '_read_segment', read_one)
    prompt = np.ones((1, 5 * LENGTH), np.int32)
    with stopping.deferred(), pytest.raises(stopping.Stopped) as caught:
        Reader(model, params, fresh_state(model, params, 1), NONE).read(prompt)
    assert len(made) == 1 and caught.value.code == 130


def test_text_comes_whole_characters_and_spaces():
    text = 'na\u00efve \u2603!'
    stream, tokens = TextStream(Bytes()), Bytes().encode(text.encode())
    parts = [stream.text(tokens[i : i + 1]) for i in range(len(tokens))]
    assert ''.join(parts) == text and '\ufffd' not in ''.join(parts)
    words = Words(['a', 'b', '<eos>'])
    stream = TextStream(words)
    assert ''.join(stream.text(np.asarray([t])) for t in (0, 1, 2, 0)) == 'a b \na '
    broken = TextStream(Bytes())
    assert broken.text(np.asarray([0xE2])) == ''
    assert broken.text(np.zeros((0,), np.int32), final=True) == '\ufffd'


@pytest.mark.parametrize('cuts', [(), (3,), (LENGTH,), (2, LENGTH + 1, 2 * LENGTH)])
def test_reading_in_parts_is_reading_at_once(cuts):
    model, params = toy('transformer_xl')
    segments = random_segments(batch=1)
    logits, _ = run(model, params, segments)
    tokens = np.asarray(segments.tokens).reshape(1, -1)
    reader = Reader(model, params, fresh_state(model, params, 1), NONE)
    for part in np.split(tokens, cuts, axis=1):
        reader.read(part)
    np.testing.assert_allclose(reader.logits[0], logits[-1, 0, -1], atol=2e-5)


def test_written_tokens_are_read_too():
    """Generated text is remembered: reading it again gives the same next logits."""
    model, params = toy('transformer_xl')
    prompt = np.asarray(random_segments(batch=1).tokens[0])
    reader = Reader(model, params, fresh_state(model, params, 1), NONE)
    reader.read(prompt)
    options = dict(vocab_size=VOCAB, temperature=1.0, top_k=0, top_p=1.0, seed=4)
    programs = continue_stream._cache_size()
    parts = list(reader.write(23, chunk=8, **options))
    assert [part.shape[1] for part in parts] == [8, 8, 7]
    compiled = continue_stream._cache_size() - programs
    assert compiled == 1, f'{compiled} programs: a shorter last chunk must need none of its own'
    whole = Reader(model, params, fresh_state(model, params, 1), NONE)
    whole.read(prompt)
    np.testing.assert_array_equal(*whole.write(23, chunk=23, **options), np.concatenate(parts, 1))
    again = Reader(model, params, fresh_state(model, params, 1), NONE)
    again.read(np.concatenate([prompt, *parts], axis=1))
    np.testing.assert_allclose(reader.logits, again.logits, atol=2e-5)
    np.testing.assert_array_equal(reader.pending, again.pending)
    for a, b in zip(jax.tree.leaves(reader.state), jax.tree.leaves(again.state), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize('name', ['full', 'transformer_xl', 'infini'])
def test_drawing_a_token_copies_no_cache(name):
    """Only closing a segment may, which is a computation of its own."""
    model, params = toy(name)
    reader = Reader(model, params, fresh_state(model, params, 1), NONE)
    reader.read(np.asarray(random_segments(batch=1).tokens[0]))
    stream, keys, greedy = reader._stream, jax.random.split(jax.random.key(0), 1), (0.0, 0, 1.0)
    args = (model, params, reader.logits, stream, keys, 0, 8, 8, VOCAB, greedy)
    text = continue_stream.lower(*args).compile().as_text()
    reading = '\n'.join(part for part in text.split('\n\n') if 'Model.close_segment' not in part)
    assert 'Model.extend' in reading and len(reading) < len(text)
    shapes = {jnp.shape(leaf) for leaf in jax.tree.leaves(stream.cache) if jnp.ndim(leaf) == 4}
    copied = {
        tuple(map(int, shape.split(',')))
        for shape in re.findall(r'\[([\d,]+)\]\S* copy\(', reading)
    }
    assert shapes and not shapes & copied, 'see `_in_a_loop` of attention/self_attention.py'


def test_beams_find_the_likeliest_text_across_a_border_and_remember_it():
    """With as many beams as there are texts, the search is exhaustive."""
    model, params = toy('transformer_xl')
    prompt, few, end = np.asarray(random_segments(batch=1).tokens[0])[:, : LENGTH - 1], 3, 2
    made = lambda: Reader(model, params, fresh_state(model, params, 1), NONE)  # noqa: E731
    reader = made()
    reader.read(prompt)
    best = reader.search(2, vocab_size=few, ends=(end,), beams=8, length_penalty=1.0)

    def score(text):
        total, read = 0.0, made()
        for at in range(len(text)):
            read = made()
            read.read(np.concatenate([prompt, np.asarray([text[:at]], np.int32)], axis=1))
            total += float(jax.nn.log_softmax(read.logits[0, :few])[text[at]])
        return total / len(text)

    texts = [(end,), *((i, end) for i in (0, 1)), *((i, j, end) for i in (0, 1) for j in (0, 1))]
    wanted = max(texts, key=score)
    assert best.tolist() == [list(wanted[:-1])]
    again = made()
    again.read(np.concatenate([prompt, best], axis=1))
    np.testing.assert_allclose(reader.logits, again.logits, atol=2e-5)


@pytest.mark.parametrize('temperature', [0.0, 1.0])
@pytest.mark.parametrize(
    'name',
    ['transformer_xl', *(pytest.param(name, marks=pytest.mark.slow) for name in AROUND)],
)
def test_ids_that_the_tokenizer_lacks_are_never_drawn(name, temperature):
    """A model may have more ids than its tokenizer, and here prefers all of those."""
    model, params = toy(name)
    reader = Reader(model, params, fresh_state(model, params, 1), NONE)
    reader.read(np.zeros((1, 1), np.int32))
    reader.logits = jnp.where(jnp.arange(VOCAB) < 3, reader.logits, 100.0)
    options = dict(vocab_size=3, temperature=temperature, top_k=0, top_p=0.9, seed=4)
    tokens = np.concatenate(list(reader.write(24, chunk=12, **options)), axis=1)
    assert tokens.shape == (1, 24) and tokens.max() < 3


def test_a_sample_of_a_task_has_only_its_words():
    model, params = toy('transformer_xl')
    words = Vocabulary(['begin', 'a', 'b'], 'begin')
    settings = base().generate
    settings.sample_length, settings.top_p = 30, 1.0
    text = sample_text(model, params, words, settings)
    assert {*text.split()} == {'a', 'b'}


def plain(model):
    """The model as it is in a memory file."""
    return model.config.to_dict() | {'segment_length': model.segment_length}


def test_state_file_gives_the_same_logits_bit_for_bit(tmp_path):
    model, params = toy('transformer_xl')
    tokens = np.asarray(random_segments(batch=1).tokens).reshape(1, -1)
    config = plain(model)
    reader = Reader(model, params, fresh_state(model, params, 1), NONE)
    reader.read(tokens[:, :13])
    size = state_file.save(tmp_path / 's', reader.state, reader.pending, config, params)
    assert size == (tmp_path / 's').stat().st_size
    fresh = fresh_state(model, params, 1)
    state, pending = state_file.load(tmp_path / 's', fresh, config, params)
    loaded = Reader(model, params, state, pending)
    np.testing.assert_array_equal(loaded.logits, reader.logits)
    for one in (reader, loaded):
        one.read(tokens[:, 13:])
    np.testing.assert_array_equal(loaded.logits, reader.logits)
    # A fork: the file is as it was.
    again, _ = state_file.load(tmp_path / 's', fresh, config, params)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_states_of_others_are_refused(tmp_path):
    model, params = toy('transformer_xl')
    fresh, config = fresh_state(model, params, 1), plain(model)
    path = tmp_path / 'state'
    state_file.save(path, fresh, NONE, config, params)
    with pytest.raises(UsageError, match='d_model: 16 there, 32 here'):
        state_file.load(path, fresh, config | {'d_model': 32}, params)
    moved = jax.tree.map(lambda leaf: leaf + 1, params)
    with pytest.raises(UsageError, match='other parameters'):
        state_file.load(path, fresh, config, moved)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UsageError, match='not a whole safetensors file'):
        state_file.load(path, fresh, config, params)
    with pytest.raises(UsageError, match='cannot be read'):
        state_file.load(tmp_path / 'none', fresh, config, params)
    with pytest.raises(UsageError, match='cannot be written'):
        state_file.save(tmp_path / 'no' / 'folder', fresh, NONE, config, params)


def test_an_output_that_is_read_is_refused(tmp_path):
    file = tmp_path / 'texts.jsonl'
    file.write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match='is the file that is read; name another'):
        read_prompts(str(file), str(tmp_path / '.' / 'texts.jsonl'))
    assert file.read_text() == '{"text": "a"}\n'
