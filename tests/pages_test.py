"""What README and pages show without running it: blocks of Python run, commands exist."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / 'README.md',
    *sorted((ROOT / 'docs').rglob('*.md')),
    *sorted((ROOT / 'experiments/notebooks').glob('*.md')),
]
FENCE = re.compile(r'^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r'python -m ([a-z][\w.]*\w)(?!\w*[A-Z])([^`\n]*)')
SHORT = re.compile(r'(?<![\w./=-])longmem (--[^`\n]*)')  # the same as `python -m longmem_jax.main`
CONFIG = re.compile(r'--config=([^\s`]+)')
MEANT = re.compile(r'[A-Z]{2}|\.\.\.')  # to be replaced by the reader


def shown():
    """Page and line, kind and text of every block."""
    for page in PAGES:
        text = page.read_text()
        for block in FENCE.finditer(text):
            line = text[: block.start()].count('\n') + 1
            yield f'{page.relative_to(ROOT)}:{line}', block['kind'].strip(), block['text']


def commands():
    """Page and line, module and arguments of every command, those in sentences too."""
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for found in COMMAND.finditer(line):
                yield f'{page.relative_to(ROOT)}:{number}', *found.groups()
            for found in SHORT.finditer(line):
                yield f'{page.relative_to(ROOT)}:{number}', 'longmem_jax.main', f' {found[1]}'


PYTHON = {where: text for where, kind, text in shown() if kind == 'python'}
COMMANDS = list(commands())


@pytest.mark.parametrize(
    'where',  # what trains a model is in the slow tier
    [
        pytest.param(where, marks=pytest.mark.slow if '.train(' in text else ())
        for where, text in PYTHON.items()
    ],
)
def test_python_that_is_shown_runs(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('lines.txt').write_text(''.join(f'line {number}\n' for number in range(1000)))
    names = {}
    exec(compile(PYTHON[where], where, 'exec'), names)
    if 'layer' in names:
        assert float(names['state'].count[0]) == 128 and 'memory_size' in names['aux'].metrics
    if 'y' in names:  # a layer by itself
        assert names['y'].shape == names['x'].shape
    if 'Model' in names:
        assert names['logits'].shape == (4, 2, 32, 256) and names['text'].shape == (4, 2, 32)


def test_docstrings_are_restructured_text():
    """The page of the API shows them; a Markdown fence is one line with backticks there."""
    for path in sorted((ROOT / 'longmem_jax').rglob('*.py')):
        tree = ast.parse(path.read_text())
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        found = [
            ast.get_docstring(node) or '' for node in ast.walk(tree) if isinstance(node, kinds)
        ]
        assert not any('```' in text for text in found), f'{path}: indent the block after a `::`'


def test_two_attributes_on_a_line_of_a_docstring_are_two():
    source = (ROOT / 'docs/conf.py').read_text()
    start = source.index('def split_names')
    names = {}
    exec(source[start : source.index('\n\n\n', start)], names)
    lines = [':ivar model, params: the model.', ':ivar state: one, two: three.', 'a, b: c']
    names['split_names'](None, 'class', 'Reader', None, None, lines)
    given = [':ivar model: see `params`.', ':ivar params: the model.']
    assert lines == [*given, ':ivar state: one, two: three.', 'a, b: c']


def test_there_are_blocks_of_python_in_readme_and_pages():
    assert {'README.md', 'docs/index.md'} <= {where.partition(':')[0] for where in PYTHON}


@pytest.mark.parametrize(
    'module', sorted({module for _, module, _ in COMMANDS if not MEANT.search(module)})
)
def test_modules_of_commands_exist(module):
    places = [where for where, other, _ in COMMANDS if other == module]
    assert importlib.util.find_spec(module), f'{places}: there is no {module}'


def test_configs_of_commands_exist():
    found = [
        (where, config.group(1))
        for where, _, arguments in COMMANDS
        for config in CONFIG.finditer(arguments)
        if not MEANT.search(config.group(1))
    ]
    assert len(found) > 5
    for where, given in found:
        name, _, argument = given.removeprefix('configs/').partition(':')
        config = importlib.import_module(f'longmem_jax.configs.{name.removesuffix(".py")}')
        try:
            config.get_config(*[argument] * bool(argument))
        except Exception as error:
            pytest.fail(f'{where}: --config={given} fails: {error}')
