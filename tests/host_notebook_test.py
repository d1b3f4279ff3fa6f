"""The notebook: its form, and every code cell on a small host."""

import json
import shlex
from pathlib import Path

import pytest

from longmem_jax.data.documents import Document
from longmem_jax.data.learn_tokenizer import learn
from longmem_jax.hosts import export, hosts, model_fields
from tests import toys

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / 'experiments/hosts/host.ipynb'
SHAPE = dict(
    model_type='gpt2', vocab_size=300, n_layer=2, n_embd=16, n_head=2, n_positions=8,
    activation_function='gelu_new',
)  # fmt: skip
TEXT = 'alpha beta gamma delta ' * 200
CHANGES = {
    'train.num_lanes': 8,
    'train.log_every': 1,
    'evaluate.num_lanes': 8,
    'evaluate.max_segments': 2,
    'evaluate.max_test_segments': 2,
}


def cells():
    """Tags and source of the code cells."""
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook['nbformat'], notebook['nbformat_minor']) == (4, 5)
    assert len({cell['id'] for cell in notebook['cells']}) == len(notebook['cells'])
    for cell in notebook['cells']:
        assert cell['cell_type'] in ('markdown', 'code') and isinstance(cell['source'], list)
        if cell['cell_type'] == 'code':
            assert cell['outputs'] == [] and cell['execution_count'] is None
            yield cell['metadata'].get('tags', []), ''.join(cell['source'])


def python_of(source):
    """A cell without the notebook's own language: a line `!COMMAND` calls `shell`."""
    lines = []
    for line in source.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        command = line.strip()
        lines.append(f'{indent}shell(f{command[1:]!r})' if command.startswith('!') else line)
    return '\n'.join(lines)


@pytest.fixture
def host(tmp_path):
    """The folder of a host with a tokenizer, and random parameters."""
    model = model_fields.model_of(SHAPE, 'config.json')
    params = toys.parameters(hosts.make(model, 8))
    export.save(tmp_path / 'host', model, params)
    learn('bpe', [Document('text', TEXT.encode())], 280, tmp_path / 'host/tokenizer.json')
    return tmp_path / 'host'


@pytest.mark.slow
def test_the_cells_run_in_order(host, tmp_path, start, capsys):
    (tmp_path / 'text.txt').write_text(TEXT)
    said = []

    def shell(command):
        python, option, module, *arguments = shlex.split(command)
        assert (python, option) == ('python', '-m'), command
        process = start(arguments, module=module)
        said.append(process.communicate()[0])
        assert process.returncode == 0, said[-1]

    names = {'shell': shell}
    small = dict(
        HOST=str(host), TEXTS=str(tmp_path / 'text.txt'), WORKDIR=str(tmp_path / 'run'),
        EXPORTED=str(tmp_path / 'exported'), STEPS=2, SEGMENT=8, CHANGES=CHANGES,
    )  # fmt: skip
    for tags, source in cells():
        if 'setup' in tags or 'display' in tags:
            continue
        if 'parameters' in tags:
            exec(python_of(source), names)
            assert set(small) <= set(names)
            names |= small
            continue
        exec(python_of(source), names)
    assert 'new: block_0,1/attention/gate' in ' '.join(capsys.readouterr().out.split())
    assert (tmp_path / 'run/gates.png').exists() and len(said) == 1
    assert isinstance(names['text'], str) and names['summary'].finished
    assert names['written'].model.attention == ('infini', 'infini')


def test_every_cell_is_python_but_for_the_setup():
    for tags, source in cells():
        if 'setup' not in tags:
            compile(python_of(source), 'cell', 'exec')
