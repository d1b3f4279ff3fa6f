"""`--mode=inspect`: the numbers of the page are those of the model, whatever the text holds."""

import base64
import io
import json
import re

import jax
import numpy as np
import pytest

from longmem_jax.commands import generate
from longmem_jax.commands.score import score
from longmem_jax.config import saved
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.microscope import page as page_module
from longmem_jax.microscope.inspect import NO_MEMORY, compared, inspect, notes_of
from longmem_jax.microscope.page import page, page_data, token_texts
from longmem_jax.microscope.reading import Reading, read_text
from longmem_jax.views import NOWHERE
from tests.commands.score_test import TEXT, experiment  # noqa: F401  (a fixture)
from tests.toys import toy

# HTML, quotes, what ends a script, Arabic, an override of direction, control characters, a placeholder.
AWKWARD = (
    '</script><img src=x onerror=alert(1)> "q" \'&amp; <!-- {{script}} '
    'مرحبا ‮abc‬ \x00\x1b[31m \u2028 日本 \U0001f600'
)
TYPES = {'f4': '<f4', 'i4': '<i4', 'u2': '<u2'}


def data_of(written):
    """What the script of a page gets."""
    return json.loads(re.search(r'type="application/json">(.*?)</script>', written, re.S)[1])


def array(packed):
    values = np.frombuffer(base64.b64decode(packed['d']), TYPES[packed['t']])
    return values.reshape(packed['s'])


def shown(made, text, path, **options):
    """The reading, the data of the page, and what was printed."""
    out = io.StringIO()
    reading = inspect(made, text, str(path), out=out, **options)
    return reading, data_of(path.read_text()), out.getvalue()


def test_the_losses_are_those_of_score(experiment, tmp_path):  # noqa: F811
    made, _ = experiment
    reading, data, printed = shown(made, TEXT, tmp_path / 'page.html')
    wanted = score(made, TEXT, out=io.StringIO())
    np.testing.assert_allclose(array(data['nats']), wanted.nats, atol=2e-4)
    gained = float((array(data['without']) - array(data['nats'])).sum())
    total = re.search(r'The memory (saves|costs) ([\d.,]+) of', printed)
    signed = float(total[2].replace(',', '')) * (1 if total[1] == 'saves' else -1)
    assert signed == pytest.approx(gained, abs=0.01)
    assert f'{wanted.total:,.2f} are left' in printed
    assert ''.join(data['tokens']) == TEXT
    # The first segment has no memory yet.
    np.testing.assert_allclose(reading.gain[: reading.length - 1], 0, atol=1e-4)
    assert np.abs(reading.gain[reading.length :]).max() > 1e-3


def test_without_is_a_memory_reset_before_every_segment(experiment, tmp_path):  # noqa: F811
    made, _ = experiment
    reading, _, _ = shown(made, TEXT, tmp_path / 'page.html')
    tokens = made.tokenizer.encode(TEXT.encode())
    inputs = np.concatenate([[made.tokenizer.begin], tokens])
    # A segment by itself: what follows its first token, read from a memory that is new.
    start = 3 * reading.length
    params, model = experiment[1], made.evaluation_model
    fresh = fresh_state(model, params, 1)
    alone = read_text(
        model, params, fresh, fresh, inputs[start : start + 1],
        np.asarray(tokens[start : start + reading.length], np.int32), reads=0,
    )  # fmt: skip
    there = reading.without[start : start + reading.length]
    np.testing.assert_allclose(alone.nats, there, atol=2e-4)


def test_a_loaded_memory_comes_before_the_text(experiment, tmp_path):  # noqa: F811
    made, _ = experiment
    half, state = len(TEXT) // 2, str(tmp_path / 'memory')
    generate.generate(made, TEXT[:half], dict(length=0), save_state=state, out=io.StringIO())
    whole, _, _ = shown(made, TEXT, tmp_path / 'whole.html')
    second, data, _ = shown(made, TEXT[half:], tmp_path / 'page.html', load_state=state)
    after = len(whole.tokens) - len(second.tokens)
    np.testing.assert_allclose(second.nats, whole.nats[after:], atol=2e-4)
    np.testing.assert_allclose(second.without, whole.without[after:], atol=2e-4)
    # The same reads, counted from the second half.
    (path, layer), *_ = second.layers.items()
    wanted, rows = whole.layers[path], len(second.tokens)
    np.testing.assert_allclose(layer.weights[-rows:], wanted.weights[-rows:], atol=1e-3)
    same = layer.weights[-rows:] > 0.02
    places = np.where(wanted.places > NOWHERE, wanted.places - after, NOWHERE)[-rows:]
    assert (layer.places[-rows:] == places)[same].mean() > 0.99
    assert (layer.places[layer.weights > 0] < 0).any(), 'some of it is of before the text'


def test_reads_of_the_last_tokens_only(experiment, tmp_path):  # noqa: F811
    made, _ = experiment
    every, _, _ = shown(made, TEXT, tmp_path / 'page.html')
    last, data, printed = shown(made, TEXT, tmp_path / 'page.html', reads=7)
    limit = f'What tokens read is kept for the last 7 of {len(last.tokens):,} (--reads).'
    assert limit in printed and limit in data['notes']
    for path, layer in last.layers.items():
        if layer.weights is not None:
            assert len(layer.weights) == data['reads'] == 7
            np.testing.assert_array_equal(layer.places, every.layers[path].places[-7:])


def test_awkward_text_stays_text(experiment, tmp_path):  # noqa: F811
    made, _ = experiment
    text = tmp_path / 'text <b>'
    text.write_bytes(AWKWARD.encode() + b'\xff\xc3' + b' end')
    path = tmp_path / 'page.html'
    _, data, _ = shown(made, f'@{text}', path)
    written = path.read_text()
    assert written.count('<script') == 2 and written.count('</script>') == 2
    assert 'onerror=alert(1)>' not in written and 'text <b>' not in written
    joined = ''.join(data['tokens'])
    assert '</script><img src=x' in joined and '\ufffd' in joined and joined.endswith(' end')
    assert '\\u202e' in joined and '\u202e' not in joined, 'directions are not changed'
    assert '\\x00' in joined and 'مرحبا' in joined and '\U0001f600' in joined


def test_nothing_is_asked_of_the_network(experiment, tmp_path):  # noqa: F811
    shown(experiment[0], TEXT, tmp_path / 'page.html')
    written = (tmp_path / 'page.html').read_text()
    assert 'default-src &#x27;none&#x27;' in written
    assert not re.findall(r'(?:src|href)="(?!data:)[^"]', written)
    addresses = set(re.findall(r'https?://[^\s"\'<)\\]+', written))
    assert addresses <= {'http://www.w3.org/2000/svg'}, addresses


@pytest.fixture
def beside(experiment, tmp_path, monkeypatch):  # noqa: F811
    """Another run, with half the parameters of the first; makes one with changes of its config."""
    made, params = experiment
    other = jax.tree.map(lambda leaf: leaf / 2, params)
    monkeypatch.setattr(
        Experiment,
        'restore_parameters',
        lambda run: (params if run.workdir == made.workdir else other, 7),
    )
    monkeypatch.setattr(
        Experiment, 'checkpoint_steps', lambda run: [] if run.workdir.name == 'untrained' else [7]
    )

    def make(name, **data):
        config = made.config.copy_and_resolve_references()
        config.data.update(data)
        (tmp_path / name).mkdir()
        saved.write(config, tmp_path / name / 'config.json')
        return str(tmp_path / name)

    return make


def test_two_runs_side_by_side(experiment, beside, tmp_path):  # noqa: F811
    made, _ = experiment
    path = tmp_path / 'page.html'
    _, data, printed = shown(made, TEXT, path, beside=beside('half'))
    runs = (data, data['beside'])
    assert [run['name'] for run in runs] == [made.workdir.name, 'half']
    assert data['tokens'] == data['beside']['tokens']
    alone, single, _ = shown(made, TEXT, tmp_path / 'single.html')
    np.testing.assert_array_equal(array(data['nats']), alone.nats)
    assert 'name' not in single and 'beside' not in single
    # The totals are those of `--mode=score`.
    other = Experiment(made.config, tmp_path / 'half', made.mesh)
    bits = [score(run, TEXT, out=io.StringIO()).bits_per_byte for run in (made, other)]
    numbers = [float(each) for each in re.findall(r'([\d.]+) bits per byte', printed)]
    assert numbers == pytest.approx(bits, abs=1e-3) and bits[0] != bits[1]
    nats = [array(run['nats']) for run in runs]
    best = int(bits[1] < bits[0])
    wins = int((nats[best] < nats[1 - best]).sum())
    difference = re.search(r': (\S+) is better by ([\d.]+) over all, and at (\d+) of', printed)
    assert difference[1] == runs[best]['name'] and int(difference[3]) == wins
    assert float(difference[2]) == pytest.approx(abs(bits[0] - bits[1]), abs=1e-3)
    assert difference[0] in path.read_text()
    assert all(f'{run["name"]}: {run["total"]}' in printed for run in runs)


def test_a_run_beside_itself_is_equal(experiment, beside, tmp_path):  # noqa: F811
    made, _ = experiment
    saved.write(made.config, made.workdir / 'config.json')
    _, data, printed = shown(made, TEXT, tmp_path / 'page.html', beside=str(made.workdir))
    assert 'both are equal' in printed and data['name'] == str(made.workdir)


def test_a_first_token_without_a_loss_counts_in_neither():
    def reading(*nats):
        nats = np.asarray(nats, np.float32)
        return Reading(np.arange(3), nats, nats, 0, 8, {}, 0, None)

    line = compared(['a', 'b'], reading(np.nan, 2, 4), reading(9, 1, 1), 6, 2)
    bits = [6 / 4 / np.log(2), 2 / 4 / np.log(2)]
    assert f'a {bits[0]:.4f} bits per byte, b {bits[1]:.4f} bits per byte' in line
    assert f'b is better by {bits[0] - bits[1]:.4f} over all, and at 2 of 2 tokens' in line


def test_runs_that_cannot_be_beside_are_refused(experiment, beside, tmp_path):  # noqa: F811
    made, _ = experiment
    (tmp_path / 'letters.json').write_text('["a", "b", "c"]')
    letters = dict(kind='characters', path=str(tmp_path / 'letters.json'), size=0)
    refused = {
        beside('letters', tokenizer=letters): 'its tokenizer is characters-',
        beside('untrained'): 'no checkpoint there',
        str(tmp_path / 'nowhere'): 'no config.json there',
    }
    for folder, message in refused.items():
        with pytest.raises(UsageError, match=message) as error:
            inspect(made, 'abc', str(tmp_path / 'page.html'), beside=folder)
        assert folder in str(error.value)
    with pytest.raises(UsageError, match='--load_state=memory: not with --beside='):
        inspect(made, 'abc', str(tmp_path / 'page.html'), beside='half', load_state='memory')
    assert not (tmp_path / 'page.html').exists()


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(output=''), '--output= is missing'),
        (dict(output='/none/page.html'), '--output=/none/page.html: cannot be written'),
        (dict(prompt=''), 'the text to inspect is empty'),
        (dict(prompt='@/none/text'), 'cannot be read'),
        (dict(load_state='/none/memory'), '--load_state=/none/memory'),
    ],
)
def test_mistakes_are_named(experiment, tmp_path, options, message):  # noqa: F811
    path = str(tmp_path / 'page.html')
    options = dict(prompt='abc', output=path) | options
    with pytest.raises(UsageError, match=re.escape(message)):
        inspect(experiment[0], **options)
    assert not list(tmp_path.iterdir()), 'nothing is left'


def test_a_single_token_with_nothing_before_it():
    """An empty memory file: the first token has no loss, and the page is still there."""
    model, params = toy('transformer_xl')
    fresh = fresh_state(model, params, 1)
    nothing = np.zeros(0, np.int32)
    reading = read_text(model, params, fresh, fresh, nothing, np.asarray([3], np.int32), reads=5)
    assert np.isnan(reading.nats).all() and not reading.layers and not reading.reads
    longer = read_text(
        model, params, fresh, fresh, nothing, np.arange(9, dtype=np.int32), reads=100
    )
    assert np.isnan(longer.nats).tolist() == [True] + 8 * [False]
    assert longer.reads == len(longer.layers['block_0/attention'].weights) == 8


@pytest.mark.parametrize(
    'name',
    [
        'local',
        'memformer',
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ('product_key', 'infinity_former', 'linear')
        ),
    ],
)
def test_every_kind_of_view_has_a_page(name, tmp_path):
    model, params = toy(name)
    fresh = fresh_state(model, params, 1)
    tokens = np.arange(23, dtype=np.int32) % 20
    reading = read_text(model, params, fresh, fresh, np.asarray([1], np.int32), tokens, reads=100)
    data = page_data(reading, Bytes(), model.config, {'a': 'b'}, [])
    assert data_of(page('title', 'total', data)) == json.loads(json.dumps(data))
    assert len(data['layers']) == len(reading.layers)
    assert (NO_MEMORY in notes_of(reading)) == (name in ('local', 'product_key'))
    if name == 'local':
        np.testing.assert_allclose(reading.gain, 0, atol=1e-5)


def test_large_states_are_left_out(monkeypatch):
    monkeypatch.setattr(page_module, 'LARGEST_TREE', 10)
    found = page_module._state({'a': np.zeros((3, 2), np.float32)})
    assert not found['html'] and 'left out' in found['why']
    assert found['rows'] == [['a', 'float32 [3, 2]', 0.0, 0.0, 0.0, 0.0]]


def test_arrays_without_elements_are_named():
    """Such as the window of a memory whose length is 0."""
    found = page_module._state({'a': np.zeros((1, 0, 4), np.float32), 'b': np.ones(2)})
    assert 'float32 [1, 0, 4]' in found['html']
    assert found['rows'][0] == ['a', 'float32 [1, 0, 4]', None, None, None, None]


def test_the_texts_of_tokens_are_the_text():
    text = 'a\u00e9\u65e5 b'
    tokens = Bytes().encode(text.encode())
    texts = token_texts(tokens, Bytes())
    assert ''.join(texts) == text and len(texts) == len(tokens)
    assert texts[1:3] == ['', '\u00e9']


def test_a_text_beyond_what_is_kept_says_so():
    """Moments at which the page shows what is held are limited, and the limit is named."""
    model, params = toy('transformer_xl')
    fresh = fresh_state(model, params, 1)
    tokens = np.arange(40, dtype=np.int32) % 20
    reading = read_text(model, params, fresh, fresh, np.asarray([1], np.int32), tokens, reads=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_module, 'SNAPSHOTS', 4)
        data = page_data(reading, Bytes(), model.config, {}, [])
    assert len(data['snapshots']) == 4 and '4 of 9 segment borders' in data['notes'][0]
    assert isinstance(reading, Reading) and reading.reads == 9
