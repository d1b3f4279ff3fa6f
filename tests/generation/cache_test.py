"""A plain decoder's cache is as long as the texts need; beyond its context it reads windows."""

import io
import json

import jax
import numpy as np
import pytest

from configs import host as host_config
from longmem_jax.commands.generate import generate
from longmem_jax.commands.generate_all import generate_all
from longmem_jax.commands.score import Scorer
from longmem_jax.config import checks
from longmem_jax.devices.sharding import make_mesh
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.likelihood import Likelihood, windows
from longmem_jax.experiment import Experiment
from longmem_jax.generation import cache
from longmem_jax.generation.reader import Reader
from longmem_jax.hosts import hosts, model_fields
from longmem_jax.models.kinds import make_model
from tests import toys
from tests.hosts.hosts_test import attributes, copied

TEXT = np.arange(1, 31, dtype=np.int32)


def pieces(before, tokens, context):
    return [(a.tolist(), b.tolist()) for a, b in windows(before, tokens, context)]


def test_windows_score_every_token_once_and_are_full():
    before, text = np.asarray([90, 91, 92]), np.arange(8)
    assert pieces(before, text, 0) == [([90, 91, 92], list(range(8)))]
    assert pieces(before, text[:2], 4) == [([90, 91, 92], [0, 1])]
    assert pieces(before, text[:2], 2) == [([92], [0, 1])]
    assert pieces(before, text, 3) == [
        ([92], [0, 1, 2]),
        ([2], [3, 4, 5]),
        ([4, 5], [6, 7]),  # read again, so that the last window is as long as the others
    ]
    assert pieces(before, text[:0], 3) == [([90, 91, 92], [])]


@pytest.mark.parametrize(
    'size, said',
    [
        (0, '0 bytes'),
        (1, '1 byte'),
        (999, '999 bytes'),
        (1000, '1.00 kB'),
        (999_994, '999.99 kB'),
        (999_999, '1.00 MB'),
        (999_999_999, '1.00 GB'),
        (1_234_567_890_000, '1,234.57 GB'),
    ],
)
def test_a_size_has_the_unit_in_which_it_reads(size, said):
    assert cache.in_bytes(size) == said


def test_the_cache_of_a_large_context_is_that_of_its_texts():
    """By default it would have room for 40,960 tokens."""
    given = attributes('llama', max_position_embeddings=40_960)
    model = hosts.make(model_fields.model_of(given, 'config.json'), 16)
    kv = model.config.num_layers * 2 * (model.config.num_kv_heads or model.config.num_heads)
    token = kv * model.config.head_dim * 4
    assert cache.in_words(model, 8).startswith('cache: 40,960 tokens x 8 texts, float32, ')
    for lanes, unit, name in ((100, 1e9, 'GB'), (8, 1e6, 'MB')):
        assert cache.in_words(model, lanes).endswith(
            f', {lanes * 40_960 * token / unit:.2f} {name}'
        )
    small = cache.in_words(cache.for_texts(model, 1), 1)
    counts = 4 * model.config.num_layers  # of what a layer has read
    assert small == f'cache: 1 token x 1 text, float32, {token + counts} bytes'
    for longest, kept in ((0, 1), (16, 1), (17, 16), (100, 96), (50_000, 40_960)):
        assert cache.num_tokens(cache.for_texts(model, longest).config) == kept
    memory, _ = toys.toy('infini')
    for options in ({}, dict(in_one_segment=2)):
        assert cache.for_texts(memory, 100, **options) is memory


@pytest.mark.parametrize(
    ('texts', 'longest', 'length', 'kept'),
    [(2, 1, 64, 1), (1, 1, 256, 1), (2, 65, 128, 1), (2, 300, 300, 1), (1, 301, 16, 288)],
)
def test_a_text_that_all_layers_see_is_kept_in_one_segment(texts, longest, length, kept):
    given = attributes('mistral', max_position_embeddings=40_960, sliding_window=300)
    model = hosts.make(model_fields.model_of(given, 'config.json'), 16)
    found = cache.for_texts(model, longest, in_one_segment=texts)
    assert (found.segment_length, cache.num_tokens(found.config)) == (length, kept)
    plain = cache.for_texts(model, longest)
    assert plain.segment_length == 16
    said = [cache.in_words(made, 1, drawn=True) for made in (found, plain)]
    tokens = [length + (kept if kept > 1 else 0), 16 + -(-longest // 16 - 1) * 16]
    assert [f'cache: {number} token' in line for number, line in zip(tokens, said, strict=True)]


@pytest.mark.parametrize(
    ('changes', 'whole'),
    [
        (dict(position='learned', num_positions=0), False),
        (dict(position='sinusoidal', num_positions=0), False),
        (dict(position='learned', num_positions=64, positions_restart=True), False),
        (dict(layer='alibi_beyond'), False),
        (dict(position='learned', num_positions=64), True),
        (dict(layer='alibi'), True),
    ],
)
def test_numbers_that_depend_on_segments_keep_their_segments(changes, whole):
    config = toys.model_config('full')
    config.full.update(window=40, position=changes.get('layer', 'none'))
    config.update({name: value for name, value in changes.items() if name != 'layer'})
    model, found = make_model(config, 5), []
    params, text = toys.parameters(model, 0), TEXT[None, :20] % toys.VOCAB
    kept = cache.for_texts(model, 25, in_one_segment=1)
    assert (kept.segment_length > 5) == whole
    for made in (kept, model):
        reader = Reader(made, params)
        reader.read(text)
        found.append(reader.logits)
    np.testing.assert_allclose(*found, atol=2e-5)


@pytest.fixture(scope='module')
def decoder():
    """A GPT-2 with 12 positions, and its parameters."""
    model = hosts.make(model_fields.model_of(attributes('gpt2', n_positions=12), 'config.json'), 4)
    return model, toys.parameters(model, 0)


def test_continuations_are_scored_within_the_context(decoder):
    said, mesh = [], make_mesh(dict(data=1), jax.devices()[:1])
    likelihood = Likelihood(*decoder, mesh, 2, said.append)
    short = (TEXT[:4], TEXT[4:7])
    (first,) = likelihood([short])
    assert said == [cache.in_words(likelihood.reader.model, 2)] and 'cache: 4 tokens' in said[0]
    found = likelihood([(TEXT[:20], TEXT[20:25]), (TEXT[:1], TEXT[1:]), short])
    assert said[1].startswith('2 of 3 texts are longer than the 12 tokens that the model reads')
    cut, *parts, again = likelihood(
        [(TEXT[12:20], TEXT[20:25]), *windows(TEXT[:1], TEXT[1:], 12), short]
    )
    np.testing.assert_allclose(
        [score.log_likelihood for score in found],
        [cut.log_likelihood, sum(part.log_likelihood for part in parts), first.log_likelihood],
        rtol=1e-5,
    )
    assert again.log_likelihood == pytest.approx(first.log_likelihood, rel=1e-5)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A host of bytes with 24 positions, as if it were a checkpoint of step 0."""
    config = host_config.get_config('tiny,memory=none,segment=8')
    config.model.num_positions = 24
    config.mesh = dict(data=1, fsdp=1, tensor=1, memory=1)
    assert not checks.find_problems(config, 1)
    made = Experiment(config, tmp_path, make_mesh(dict(data=1), jax.devices()[:1]))
    params = jax.tree.map(lambda leaf: 4 * leaf, toys.parameters(made.model, 0))
    monkeypatch.setattr(Experiment, 'restore_parameters', lambda self: (params, 0))
    return made


def test_a_text_beyond_the_context_is_scored_in_windows(run, capsys):
    scorer, text = Scorer(run), b'alpha beta gamma delta epsilon zeta'
    losses = scorer(text)
    said = capsys.readouterr().err
    assert 'longer than the 24 tokens that the model reads: scored in windows' in said
    assert 'cache: 16 tokens x 1 text, ' in said and 'texts begin with token 256' in said
    first = Scorer(run)(text[:24])
    np.testing.assert_allclose(losses.nats[:24], first.nats, atol=1e-5)
    assert len(losses.nats) == len(text) and np.isfinite(losses.nats).all()


@pytest.mark.slow
def test_a_prompt_that_the_positions_do_not_reach_is_refused(run, capsys, tmp_path):
    options = dict(length=4, temperature=0.0)
    generate(run, 'alpha', options, out=io.StringIO())
    assert 'cache: 24 tokens x 1 text, ' in capsys.readouterr().err
    with pytest.raises(
        UsageError, match='22 prompt tokens and --length=4: .* positions for 24 tok'
    ):
        generate(run, 'a' * 21, options, out=io.StringIO())
    texts = [dict(text=text) for text in ('a', 'a' * 21, 'b')]
    (tmp_path / 'prompts.jsonl').write_text('\n'.join(map(json.dumps, texts)))
    with pytest.raises(UsageError, match='prompt 2 of 3: 22 prompt tokens'):
        generate_all(run, str(tmp_path / 'prompts.jsonl'), options, out=io.StringIO())


def test_the_cache_in_training_has_a_limit_that_is_said(tmp_path):
    folder = copied('llama', tmp_path, max_position_embeddings=40_960)
    config = host_config.get_config(f'path={folder},memory=none')
    assert config.model.cache_tokens == 2048 and config.model.full.window == 40_960
    assert 'tokens see their segment and 2,048 tokens before it, of the 40,960' in config.notes[0]
    config = host_config.get_config(f'path={folder},memory=none,context=1024')
    assert config.model.full.window == 1024 and not config.model.cache_tokens
    assert not json.loads((folder / 'config.json').read_text()).get('longmem')
    for argument, message in (
        ('memory=none,context=50000', 'no longer context, such as 50000, is possible'),
        ('memory=infini,context=1024', 'is for memory=none'),
    ):
        with pytest.raises(UsageError, match=message):
            host_config.get_config(f'path={folder},{argument}')
    config.model.cache_dtype = 'float8'
    assert 'cache_dtype' in '\n'.join(checks.find_problems(config, 1))
