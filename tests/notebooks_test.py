"""The notebooks are what their sources are; the sources run whenever the documentation is built."""

import json
from pathlib import Path

import jupytext
import pytest

FOLDER = Path(__file__).parent.parent / 'experiments/notebooks'
SOURCES = sorted(FOLDER.glob('*.md'))


@pytest.mark.parametrize('source', SOURCES, ids=lambda path: path.stem)
def test_notebook_is_its_source(source):
    notebook = json.loads(source.with_suffix('.ipynb').read_text())
    wanted = jupytext.read(source)
    cells = [(cell['cell_type'], ''.join(cell['source'])) for cell in notebook['cells']]
    assert cells == [(cell.cell_type, cell.source) for cell in wanted.cells], (
        f'make it with `jupytext --to ipynb {source.relative_to(FOLDER.parents[1])}`'
    )
    assert not any(cell.get('outputs') for cell in notebook['cells']), 'keep it without outputs'


def test_there_are_notebooks():
    assert SOURCES
