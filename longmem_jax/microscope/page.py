"""The page as one HTML file: data, script and style inside, no request to anywhere.

The text may hold anything: it is only ever inside JSON, in which `<`, `>` and `&` are escaped, and the
script puts it on the page as text, never as HTML. Arrays are base64: JSON has no nan.
"""

import base64
import html
import json
import math
import re
from importlib import resources
from typing import Any

import jax
import numpy as np
import treescope

from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import visible
from longmem_jax.generation.text import NONE, TextStream
from longmem_jax.microscope.reading import LayerReading, Reading
from longmem_jax.models.stack import around_of
from longmem_jax.reporting.paths import leaf_path

SNAPSHOTS = 257  # moments at which the page shows what is held, at most
LARGEST_TREE = 1 << 20  # bytes of HTML for the arrays of the state
# Nothing may be requested, whatever is on the page. Treescope makes functions of its own text.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; "
    'img-src data:; font-src data:'
)
TYPES = {'f4': np.float32, 'i4': np.int32, 'u2': np.uint16}


def packed(array: Any, kind: str) -> dict[str, Any]:
    """An array for the script: type, shape, and its little-endian bytes in base64."""
    array = np.ascontiguousarray(array, np.dtype(TYPES[kind]).newbyteorder('<'))
    return {'t': kind, 's': list(array.shape), 'd': base64.b64encode(array.tobytes()).decode()}


def _shares(array: np.ndarray) -> dict[str, Any]:
    """Numbers in [0, 1] with 16 bits."""
    return packed(np.round(np.clip(array, 0, 1) * 65535), 'u2')


def token_texts(tokens: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """What every token completes, so that all of them are the whole text; '' = a part of a character.

    Characters that would change how others are shown are written out.
    """
    stream = TextStream(tokenizer)
    texts = [stream.text(tokens[i : i + 1]) for i in range(len(tokens))]
    texts[-1] += stream.text(NONE, final=True)
    return [visible(text) for text in texts]


def layer_name(path: str, config: Any) -> str:
    """'layer 2: infini' for the path 'block_2/attention', 'layers 0 to 2: memformer' for 'around_0'."""
    where, _, rest = path.partition('/')
    place, _, number = where.partition('_')
    first = int(number)
    if place == 'around':
        last = next(numbers[-1] for _, numbers in around_of(config) if numbers[0] == first)
        return f'layers {first} to {last}: {config.around[first]}'
    return f'layer {first}: {config[rest.partition("/")[0]][first]}'


def _layer(name: str, layer: LayerReading, snapshots: np.ndarray) -> dict[str, Any]:
    found: dict[str, Any] = {
        'name': name,
        'held': {key: packed(rows[snapshots], 'f4') for key, rows in layer.held.items()},
        'mean_age': {key: packed(rows[snapshots], 'f4') for key, rows in layer.mean_age.items()},
        'by_token': {key: packed(rows, 'f4') for key, rows in layer.by_token.items()},
        'by_segment': {key: packed(rows, 'f4') for key, rows in layer.by_segment.items()},
    }
    if layer.places is not None:
        assert layer.weights is not None and layer.shares is not None and layer.spans is not None
        found['places'] = packed(layer.places, 'i4')
        found['weights'] = _shares(layer.weights)
        found['shares'] = _shares(layer.shares)
        if layer.spans.max(initial=1) > 1:
            found['spans'] = packed(layer.spans, 'u2')
    if layer.slots is not None:
        assert layer.slot_weights is not None
        found['slots'] = packed(layer.slots, 'i4')
        found['slot_weights'] = _shares(layer.slot_weights)
    return found


def _number(value: float) -> float | None:
    return float(f'{value:.6g}') if math.isfinite(value) else None


def state_rows(state: Any) -> list[list[Any]]:
    """Name, shape with dtype, smallest, mean, largest and norm of every array of the memories."""
    rows = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        array = np.asarray(leaf)
        numbers = array.astype(np.float64)
        row = [leaf_path(path), f'{array.dtype} {list(array.shape)}']
        if array.size:
            norm = float(np.sqrt(np.square(numbers).sum()))
            figures = (numbers.min(), numbers.mean(), numbers.max(), norm)
            rows.append(row + [_number(float(figure)) for figure in figures])
        else:
            rows.append([*row, None, None, None, None])
    return rows


def _drawable(leaf: Any) -> Any:
    """An array for treescope, which cannot draw one without elements: its type and shape instead."""
    array = np.asarray(leaf)
    return array if array.size else f'{array.dtype} {list(array.shape)}'


def _state(state: Any) -> dict[str, Any]:
    """The memories at the end: a table, and the arrays by treescope where that is not too large."""
    found = {'rows': state_rows(state), 'html': '', 'why': 'This model carries no memory.'}
    if not found['rows']:
        return found
    with treescope.active_autovisualizer.set_scoped(treescope.ArrayAutovisualizer()):
        tree = treescope.render_to_html(jax.tree.map(_drawable, state), compressed=False)
    if len(tree) > LARGEST_TREE:
        size = f'{len(tree) / 2**20:.1f} MB'
        return found | {'why': f'The arrays are left out: their picture would be {size}.'}
    return found | {'html': tree}


def page_data(
    reading: Reading, tokenizer: Tokenizer, config: Any, facts: dict[str, str], notes: list[str]
) -> dict[str, Any]:
    """What the script shows, ready for JSON.

    `notes` are what the reader must know, such as limits.
    """
    segments = max(
        (len(rows) for one in reading.layers.values() for rows in one.held.values()), default=1
    )
    snapshots = np.unique(
        np.linspace(0, segments - 1, min(segments, SNAPSHOTS)).round().astype(int)
    )
    notes = list(notes)
    if len(snapshots) < segments:
        notes.append(
            f'What is held is kept for {len(snapshots):,} of {segments:,} segment borders.'
        )
    return {
        'facts': [[name, visible(fact)] for name, fact in facts.items()],
        'notes': notes,
        'tokens': token_texts(reading.tokens, tokenizer),
        'nats': packed(reading.nats, 'f4'),
        'without': packed(reading.without, 'f4'),
        'first': reading.first,
        'length': reading.length,
        'reads': reading.reads,
        'snapshots': snapshots.tolist(),
        'layers': [
            _layer(layer_name(path, config), layer, snapshots)
            for path, layer in reading.layers.items()
        ],
        'state': _state(reading.state),
    }


def as_json(data: Any) -> str:
    """JSON that no HTML parser mistakes for its own."""
    text = json.dumps(data, allow_nan=False, separators=(',', ':'))
    for sign in '<>&':
        text = text.replace(sign, f'\\u{ord(sign):04x}')
    return text


def _file(name: str) -> str:
    return resources.files('longmem_jax.microscope').joinpath(name).read_text('utf-8')


def _about(data: dict[str, Any]) -> str:
    """Notes and facts of the only run; the script shows those of two runs above their texts."""
    facts = ''.join(
        f'<dt>{html.escape(name)}</dt><dd>{html.escape(fact)}</dd>' for name, fact in data['facts']
    )
    notes = ''.join(f'<p class="note">{html.escape(note)}</p>' for note in data['notes'])
    about = f'<details><summary>About this page</summary><dl class="facts">{facts}</dl></details>'
    return f'{notes}\n{about}'


def page(title: str, total: str, data: dict[str, Any]) -> str:
    """The page; `total` says what the memory gained in all, `data` is from `page_data`.

    Of two runs over the same text `data['beside']` is the second; both then have a `name` and a `total`.
    """
    content = {
        'title': html.escape(visible(title)),
        'policy': html.escape(POLICY),
        'style': _file('page.css'),
        'total': html.escape(total),
        'about': '' if 'beside' in data else _about(data),
        'script': _file('page.js'),
        'data': as_json(data),
    }
    # In one pass, so that nothing is filled into what was filled in.
    return re.sub(r'\{\{(\w+)\}\}', lambda found: content[found[1]], _file('page.html'))
