"""The notebooks are what their sources are; the sources run whenever the documentation is built."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / 'experiments/notebooks'
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


@pytest.fixture(scope='module')
def links():
    """`docs/address.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location('address', ROOT / 'docs/address.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_with_an_address_every_notebook_opens_in_colab(links):
    for source in SOURCES:
        badge = links.badge(f'notebooks/{source.stem}', 'https://github.com/them/theirs')
        link = re.search(r'\((https://colab\.research\.google\.com/github/[^)]*)\)$', badge)[1]
        repository, path = link.split('/github/')[1].split('/blob/main/')
        assert repository == 'them/theirs' and (ROOT / path).is_file()
    assert (
        links.badge('notebooks/book', '') == links.badge('segment', 'https://github.com/a/b') == ''
    )
    assert links.badge('notebooks/book', 'https://gitlab.com/a/b') == '', 'Colab reads GitHub'


@pytest.mark.parametrize('at', ['main', 'v0.2.0'])
def test_on_the_package_index_links_of_readme_are_absolute(links, at):
    text = links.absolute((ROOT / 'README.md').read_text(), 'https://example.org/it', at)
    targets = re.findall(r'\]\(([^)\s]*)\)', text)
    assert f'https://example.org/it/raw/{at}/docs/segment.svg' in targets
    assert f'https://example.org/it/blob/{at}/docs/which_memory.md' in targets
    assert all(target.startswith(('https://', '#')) for target in targets)


def test_links_of_a_release_lead_to_its_tag(tmp_path):
    """By the command, as `.github/workflows/publish.yml` calls it; without an address it refuses."""
    (tmp_path / 'docs').mkdir()
    shutil.copy(ROOT / 'docs/address.py', tmp_path / 'docs')
    page, setup = tmp_path / 'page.md', tmp_path / 'setup.cfg'
    page.write_text('[a](docs/a.md) ![b](b.png) [c](#c)\n')
    command = [sys.executable, tmp_path / 'docs/address.py', '--at=v0.2.0', page]
    setup.write_text('[metadata]\nurl =\n')
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (
        ended.returncode == 1 and 'has no url' in ended.stderr and '(docs/a.md)' in page.read_text()
    )
    setup.write_text('[metadata]\nurl = https://example.org/it/\n')
    subprocess.run(command, check=True)
    assert page.read_text() == (
        '[a](https://example.org/it/blob/v0.2.0/docs/a.md) '
        '![b](https://example.org/it/raw/v0.2.0/b.png) [c](#c)\n'
    )
