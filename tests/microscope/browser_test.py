"""The page of `--mode=inspect` in a real browser: clicks, keys, tabs, sizes, and no request."""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from longmem_jax.data.tokenizers import Bytes
from longmem_jax.generation.reader import fresh_state
from longmem_jax.microscope.page import page, page_data
from longmem_jax.microscope.reading import read_text
from tests.microscope.inspect_test import AWKWARD
from tests.toys import toy

CHROMIUM = os.environ.get('CHROMIUM') or shutil.which('chromium') or shutil.which('google-chrome')
OPTIONS = (
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync',
)  # fmt: skip
WIDTHS = {'desktop': 1280, 'phone': 375}
LINES = 'def alpha(beta):\n\treturn beta * 2\n\n' * 4
TEXT = AWKWARD + ' ' + LINES

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM, reason='there is no chromium: apt-get install chromium, or CHROMIUM=PATH'
    ),
]


class Folded(Bytes):
    """Bytes for a toy's small vocabulary: ids are the bytes modulo its size, the text is kept."""

    def __init__(self, size):
        self.size = size

    def model_ids(self, text):
        return (np.frombuffer(text, np.uint8) % self.size).astype(np.int32)


def read_by(name, reads, before):
    """The reading of a toy that reads `TEXT`, and its part of the page."""
    model, params = toy(name)
    fresh, text = fresh_state(model, params, 1), TEXT.encode()
    ids = Folded(model.config.vocab_size).model_ids(text)
    reading = read_text(model, params, fresh, fresh, np.asarray(before, np.int32), ids, reads=reads)
    reading.tokens = Bytes().encode(text)
    data = page_data(reading, Bytes(), model.config, {'model': '<b>toy</b>'}, ['A note.'])
    return reading, data | {'name': name, 'total': 'It saves 1 nat.'}


def written(name, path, reads=60, before=(1,), beside=''):
    """The page of a toy, or of two side by side."""
    reading, data = read_by(name, reads, before)
    if beside:
        other, data['beside'] = read_by(beside, reads, before)
        reading = (reading, other)
    path.write_text(page(f'What {name} did', 'The memory saves 1 nat.', data), encoding='utf-8')
    return reading


@pytest.fixture(scope='module')
def browser():
    playwright = pytest.importorskip('playwright.sync_api', reason='the extra [browser]')
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens the page of a toy: the reading, the tab, and what went wrong in it."""
    contexts = []

    def open_page(name, width='desktop', colours='light', **options):
        path = tmp_path / 'page.html'
        reading = written(name, path, **options)
        size = {'width': WIDTHS[width], 'height': 800}
        contexts.append(browser.new_context(viewport=size, color_scheme=colours))
        tab, wrong, asked = contexts[-1].new_page(), [], []
        tab.on('console', lambda said: wrong.append(said.text))
        tab.on('pageerror', lambda error: wrong.append(str(error)))
        tab.on('dialog', lambda dialog: wrong.append(dialog.message))
        tab.on('request', lambda request: asked.append(request.url))
        tab.goto(path.as_uri())
        tab.wait_for_selector('html[data-ready=yes]')
        return reading, tab, wrong, asked

    yield open_page
    for context in contexts:
        context.close()


def chosen(tab):
    """The number of the token that is chosen."""
    return int(tab.locator('.k.selected').get_attribute('id')[1:])


def test_a_click_shows_losses_and_reads(opened):
    reading, tab, wrong, asked = opened('transformer_xl')
    last = len(reading.tokens) - 1
    for token in (last, last - 20):
        tab.click(f'#t{token}')
        assert chosen(tab) == token
        losses = tab.inner_text('#losses')
        assert all(f'{loss[token]:.3g}' in losses for loss in (reading.nats, reading.without))
        assert f'token {token}' in tab.inner_text('#chosen')
        marked = {int(each['id'][1:]) for each in attributes(tab, '#text .read')}
        rows = {int(each['token']) for each in attributes(tab, '#reads tr[data-token]')}
        assert rows and rows <= marked, 'what was read is marked in the text'
        assert max(marked) < token, 'only earlier tokens are read'
        heaviest = tab.locator('#reads tr[data-token]').first
        shares = tab.inner_text('#reads .keys')
        assert 'memory' in shares and 'this segment' in shares
    # A row leads to its token.
    target = int(heaviest.get_attribute('data-token'))
    heaviest.click()
    assert chosen(tab) == target
    assert (wrong, asked) == ([], [tab.url])


def attributes(tab, selector):
    """Ids and data of all elements."""
    return tab.eval_on_selector_all(
        selector, 'found => found.map((each) => ({...each.dataset, id: each.id}))'
    )


def test_a_first_token_after_a_whole_segment_is_in_segment_0(opened):
    """The text continues a memory file that ends with a segment."""
    reading, tab, wrong, _ = opened('transformer_xl', before=())
    tab.click('#t0')
    assert 'segment 0' in tab.inner_text('#chosen')
    assert 'no loss' in tab.inner_text('#losses')
    borders = [int(each['id'][1:]) for each in attributes(tab, '#text .border')]
    assert borders[0] == reading.length + 1, 'the first token is no target, the others are'
    assert not wrong


def test_heaviest_reads_are_those_of_the_model(opened):
    reading, tab, wrong, _ = opened('transformer_xl')
    tab.select_option('#layer', '2')  # after 'all layers', the second layer
    tab.select_option('#head', '1')  # after the mean, the first head
    token = len(reading.tokens) - 1
    tab.click(f'#t{token}')
    layer = reading.layers['block_1/attention']
    weights, places = layer.weights[-1, 0, :8], layer.places[-1, 0, :8]
    first = tab.locator('#reads tr[data-token]').first
    assert int(first.get_attribute('data-token')) == places[weights.argmax()]
    assert float(first.locator('td').first.inner_text()) == pytest.approx(weights.max(), rel=0.02)
    assert wrong == []


def test_tokens_whose_reads_are_not_kept(opened):
    reading, tab, wrong, _ = opened('transformer_xl', reads=10)
    tab.click('#t5')
    assert 'the last 10 tokens only' in tab.inner_text('#reads')
    assert wrong == []


def test_keys_move_the_choice(opened):
    reading, tab, wrong, _ = opened('transformer_xl')
    last = len(reading.tokens) - 1
    tab.focus('#text')
    for key, wanted in (('Home', 0), ('ArrowRight', 1), ('ArrowLeft', 0), ('End', last)):
        tab.keyboard.press(key)
        assert chosen(tab) == wanted, key
    tab.keyboard.press('ArrowUp')
    above = chosen(tab)
    assert above < last
    tab.keyboard.press('ArrowDown')
    assert chosen(tab) > above
    tab.keyboard.press('PageUp')
    active = tab.get_attribute('#text', 'aria-activedescendant')
    assert active == f't{chosen(tab)}'
    assert wrong == []


@pytest.mark.parametrize('name', ['expire_span', 'infini', 'infinity_former', 'memformer', 'local'])
def test_tabs(opened, name):
    reading, tab, wrong, asked = opened(name)
    tab.click('#tab-held')
    bars = tab.locator('#ages .age').count()
    holds = any(layer.held for layer in reading.layers.values())
    assert bool(bars) == holds
    if holds:
        tab.evaluate("() => { const s = document.getElementById('when'); s.value = 0;"
                     " s.dispatchEvent(new Event('input')); }")  # fmt: skip
        assert tab.locator('#ages .age').count() == 0, 'nothing is held at the start'
    tab.click('#tab-time')
    figures = tab.inner_text('#charts')
    assert 'gain, nats per token' in figures
    for layer in reading.layers.values():
        assert all(line.replace('_', ' ') in figures for line in layer.by_segment)
    tab.click('#tab-state')
    rows = tab.locator('#leaves tr').count()
    if name == 'local':
        assert not rows and 'carries no memory' in tab.inner_text('#tree')
    else:
        frame = tab.frame_locator('#tree iframe')
        tab.locator('#tree iframe').scroll_into_view_if_needed()
        frame.get_by_text('State(').first.wait_for()
        assert rows
    tab.focus('#tab-state')
    tab.keyboard.press('ArrowRight')
    assert tab.get_attribute('#tab-gains', 'aria-selected') == 'true'
    assert tab.is_visible('#panel-gains') and not tab.is_visible('#panel-state')
    tab.locator('#best tr, #worst tr').first.click()
    assert wrong == []
    assert [url for url in asked if not url.startswith('about:')] == [tab.url]


@pytest.mark.parametrize('colours', ['light', 'dark'])
@pytest.mark.parametrize('width', sorted(WIDTHS))
def test_it_is_readable(opened, width, colours):
    _, tab, wrong, _ = opened('expire_span', width, colours)
    for panel in ('gains', 'held', 'time', 'state'):
        tab.click(f'#tab-{panel}')
        inside = tab.evaluate('[document.documentElement.scrollWidth, innerWidth]')
        assert inside[0] <= inside[1], f'{panel}: the page scrolls sideways at {width}'
    style = 'getComputedStyle(document.body)'
    ink, paper = (
        [int(part) for part in re.findall(r'\d+', tab.evaluate(f'{style}.{which}'))]
        for which in ('color', 'backgroundColor')
    )
    assert abs(sum(ink[:3]) - sum(paper[:3])) > 500, 'text and page differ in brightness'
    assert (sum(paper[:3]) < 200) == (colours == 'dark')
    assert wrong == []


def test_a_tap_on_a_phone_shows_its_panel(opened):
    _, tab, wrong, _ = opened('transformer_xl', 'phone')
    tab.set_viewport_size({'width': WIDTHS['phone'], 'height': 480})
    tab.click('#t5')
    box = tab.locator('#chosen').bounding_box()
    assert 0 <= box['y'] < 480 - box['height'], 'the panel is below the screen'
    assert tab.locator('#t5').bounding_box()['y'] < tab.locator('.detail').bounding_box()['y']
    assert wrong == []


@pytest.mark.parametrize('width', sorted(WIDTHS))
def test_two_runs_side_by_side(opened, width):
    both, tab, wrong, asked = opened('transformer_xl', width, beside='expire_span')
    names, last = ('transformer_xl', 'expire_span'), len(both[0].tokens) - 1
    boxes = [tab.locator(f'#text{suffix}').bounding_box() for suffix in ('', '-2')]
    axis = 'x' if width == 'desktop' else 'y'
    assert boxes[0][axis] + boxes[0]['width' if axis == 'x' else 'height'] <= boxes[1][axis]
    assert all(name in tab.inner_text('.run >> nth=0') for name in names)
    for place in ('#t7', f'#t{last}-2'):
        tab.click(place)
        token = int(re.findall(r'\d+', place)[0])
        for suffix, own in (('', 0), ('-2', 1)):
            assert tab.locator('.selected').nth(own).get_attribute('id') == f't{token}{suffix}'
            losses = tab.inner_text(f'#losses{suffix}')
            for reading in both:
                assert f'{reading.nats[token] / np.log(2):.3g} bits' in losses
            assert f'token {token}' in tab.inner_text(f'#chosen{suffix}')
        lead = (both[1].nats[token] - both[0].nats[token]) / np.log(2)
        words = ('better', 'worse') if lead > 0 else ('worse', 'better')
        for suffix, word, name in zip(('', '-2'), words, reversed(names), strict=True):
            verdict = tab.inner_text(f'#verdict{suffix}')
            assert f'{abs(lead):.3g} bits {word} than {name}' in verdict
    # One is blue where the other is orange, as strong.
    token = int(np.nanargmax(both[1].nats - both[0].nats))
    background = 'node => getComputedStyle(node).backgroundColor'
    here, there = (tab.eval_on_selector(f'#t{token}{s}', background) for s in ('', '-2'))
    assert here.startswith('rgba(0, 114, 178') and there.startswith('rgba(230, 120, 0')
    assert here.split(',')[3] == there.split(',')[3]
    tab.focus('#text-2')
    tab.keyboard.press('Home')
    assert [each['id'] for each in attributes(tab, '.selected')] == ['t0', 't0-2']
    assert tab.evaluate("document.getElementById('text').scrollTop") == 0
    tab.select_option('#colour-2', '2')
    assert tab.input_value('#colour') == '2', 'what both have is chosen in both'
    for panel in ('held', 'time', 'state', 'gains'):
        tab.click(f'#tab-{panel}')
        assert tab.is_visible(f'#panel-{panel}') and tab.is_visible(f'#panel-{panel}-2')
        inside = tab.evaluate('[document.documentElement.scrollWidth, innerWidth]')
        assert inside[0] <= inside[1], f'{panel}: the page scrolls sideways at {width}'
    best = tab.locator('#best tr').first
    assert int(best.get_attribute('data-token')) == token
    assert tab.locator('main').count() == 1 and tab.locator('.facts b').count() == 0
    ids = [each['id'] for each in attributes(tab, '[id]')]
    assert len(ids) == len(set(ids))
    assert wrong == [] and [url for url in asked if not url.startswith('about:')] == [tab.url]


def test_text_is_shown_as_it_is(opened):
    _, tab, wrong, asked = opened('transformer_xl')
    assert tab.locator('#text img, #text script, .facts b').count() == 0
    said = tab.inner_text('#text')
    assert '</script><img src=x onerror=alert(1)>' in said and 'مرحبا' in said
    assert tab.inner_text('h1') == 'What transformer_xl did'
    assert (wrong, asked) == ([], [tab.url])


def test_colours(opened):
    reading, tab, wrong, _ = opened('expire_span')
    best, worst = int(np.nanargmax(reading.gain)), int(np.nanargmin(reading.gain))
    background = 'node => getComputedStyle(node).backgroundColor'
    helped, hurt = (tab.eval_on_selector(f'#t{t}', background) for t in (best, worst))
    assert helped.startswith('rgba(0, 114, 178') and hurt.startswith('rgba(230, 120, 0')
    names = tab.locator('#colour option').all_inner_texts()
    assert any(name.startswith('span, tokens') for name in names)
    tab.select_option('#colour', str(len(names) - 1))
    assert tab.get_attribute('#bar', 'class') == 'amount'
    assert Path(tab.url).name == 'page.html' and wrong == []
