"""The package as others install it: a wheel, used in a folder where there is no checkout.

And the source distribution, from which others make that wheel and run these tests.
"""

import configparser
import functools
import importlib.metadata
import itertools
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.processes import environment

ROOT = Path(__file__).parent.parent
# Run by Python at its start: packages are as if not installed.
HIDE = """
import sys
from importlib.machinery import PathFinder

class Rest(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition('.')[0] in {hidden}
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Rest
"""
# What takes long to import, and is needed by few commands.
LATE = {'matplotlib', 'pyarrow', 'scipy', 'sentencepiece', 'tensorflow_datasets'}
LAYER = """
import sys
before = {name.partition('.')[0] for name in sys.modules}
import longmem_jax
after = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names
assert after - before == {'longmem_jax'}, after - before
longmem_jax.InfiniAttention(d_model=8, num_heads=2, segment_length=4)
longmem_jax.nnx.wrap
try:
    longmem_jax.train
except ValueError as error:
    assert "ml_collections is missing: pip install 'longmem_jax[train]'" in str(error), error
    sys.argv[1:] = ['--help']
    from longmem_jax.main import main
    main()
"""
BUILD = 'from setuptools import build_meta; print(build_meta.build_{kind}("."))'


def build(kind, folder):
    """Makes the 'wheel' or 'sdist' of the sources in `folder`, without network; returns its path."""
    command = [sys.executable, '-c', BUILD.replace('{kind}', kind)]
    said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    return folder / said.splitlines()[-1]


def ours():
    """Names of the project's files: those of git, or of the source distribution that this is."""
    if (ROOT / '.git').exists():
        command = ['git', 'ls-files', '-z']
        listed = subprocess.run(
            command, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        return {name for name in listed.split('\0') if name and os.path.lexists(ROOT / name)}
    sources = ROOT / 'longmem_jax.egg-info' / 'SOURCES.txt'
    if not sources.exists():
        pytest.skip('neither a checkout nor an unpacked source distribution')
    return {*sources.read_text().splitlines()}


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """The wheel of this checkout."""
    source = tmp_path_factory.mktemp('source')
    for name in ('setup.cfg', 'pyproject.toml', 'README.md', 'LICENSE'):
        shutil.copy(ROOT / name, source)
    without = shutil.ignore_patterns('__pycache__')
    for name in ('longmem_jax', 'configs'):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=without)
    return build('wheel', source)


@pytest.fixture(scope='module')
def copied(tmp_path_factory):
    """A folder with the project's files."""
    folder = tmp_path_factory.mktemp('copied')
    for name in ours():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope='module')
def unpacked(copied, tmp_path_factory):
    """The folder that the source distribution unpacks to."""
    folder = tmp_path_factory.mktemp('unpacked')
    shutil.unpack_archive(build('sdist', copied), folder)
    [inside] = folder.iterdir()
    return inside


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
    """A folder with what the wheel holds."""
    folder = tmp_path_factory.mktemp('site-packages')
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_everything_is_in_the_wheel(installed):
    inside = {path.relative_to(installed).as_posix() for path in installed.rglob('*')}
    sources = {path.relative_to(ROOT) for path in (ROOT / 'longmem_jax').rglob('*.py')}
    wanted = {path.as_posix() for path in sources} | {'longmem_jax/py.typed'}
    wanted |= {f'longmem_jax/microscope/page.{kind}' for kind in ('html', 'css', 'js')}
    wanted |= {f'longmem_jax/configs/{path.name}' for path in (ROOT / 'configs').glob('*.py')}
    assert not wanted - inside, 'add these to [options.packages.find] or package_data of setup.cfg'
    foreign = {name.split('/')[0] for name in inside} - {'longmem_jax'}
    assert len(foreign) == 1 and foreign.pop().endswith('.dist-info'), 'only one package is ours'


def contents(wheel):
    """Checksums of the files of the package in a wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
    return {file.filename: file.CRC for file in files if file.filename.startswith('longmem_jax/')}


def test_everything_is_in_the_source_distribution(unpacked):
    """Links are folders there: `longmem_jax/configs` and `docs/notebooks`."""
    missing = {name for name in ours() if not (unpacked / name).exists()} - {'.gitignore'}
    assert not missing, 'add these to MANIFEST.in'
    for name in ('SECURITY.md', 'docs/index.md', '.ci/run', 'tests/wheel_test.py'):
        assert (unpacked / name).is_file(), name
    for name in ('configs', 'longmem_jax/configs'):
        assert (unpacked / name / 'quickstart.py').is_file(), name


def test_the_source_distribution_gives_the_same_wheel(copied, unpacked):
    found, wanted = (contents(build('wheel', folder)) for folder in (unpacked, copied))
    assert found == wanted and wanted, 'see MANIFEST.in and setup.cfg'


def test_the_version_is_that_of_setup_cfg():
    settings = configparser.ConfigParser()
    settings.read(ROOT / 'setup.cfg')
    version = settings['metadata']['version']
    assert f'\nversion: {version}\n' in (ROOT / 'CITATION.cff').read_text()
    assert f'\n## {version}' in (ROOT / 'CHANGELOG.md').read_text()


def test_console_script(installed, tmp_path):
    """It shows the flags of the command, though they are those of another module than the script."""
    entries = configparser.ConfigParser()
    entries.read(next(installed.glob('*.dist-info/entry_points.txt')))
    module, function = entries['console_scripts']['longmem'].split(':')
    script = tmp_path / 'longmem'  # as pip writes it
    script.write_text(f'import sys\nfrom {module} import {function}\nsys.exit({function}())\n')
    ended = run(installed, tmp_path, LATE, str(script), '--help')
    assert ended.returncode == 0 and ended.stdout.startswith('The command: '), ended.stderr
    for flag in (
        '--config: NAME',
        '--workdir: Folder of the run',
        '--[no]debug: Show',
        '--mode: <',
    ):
        assert flag in ended.stdout, ended.stdout


def needed(requirements):
    """Names of the distributions that lines of requirements need, and what these need in turn."""
    found, waiting = set(), [Requirement(line) for line in requirements]
    asked = set()
    while waiting:
        wanted = waiting.pop()
        for extra in {'', *wanted.extras}:
            name = canonicalize_name(wanted.name)
            if (name, extra) in asked:
                continue
            asked.add((name, extra))
            try:
                lines = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue  # of another system, or a marker's
            found.add(name)
            for line in map(Requirement, lines):
                if line.marker is None or line.marker.evaluate({'extra': extra}):
                    waiting.append(line)
    return found


def required(installed, extra=''):
    """Requirements of the wheel, without extras or with one and those that it has in turn."""
    metadata = importlib.metadata.Distribution.at(next(installed.glob('*.dist-info')))
    found = []
    for line in map(Requirement, metadata.requires):
        if line.marker is None or line.marker.evaluate({'extra': extra}):
            ours = canonicalize_name(line.name) == 'longmem-jax'
            inside = (
                [required(installed, other) for other in line.extras] if ours else [[line.name]]
            )
            found += itertools.chain.from_iterable(inside)
    return found


@functools.cache
def packages():
    """Names that are imported to those of the distributions that have them."""
    known = importlib.metadata.packages_distributions()
    return {name: set(map(canonicalize_name, owners)) for name, owners in known.items()}


@pytest.fixture(scope='module')
def core(installed):
    """Distributions that are installed with the wheel and [train]."""
    return needed(required(installed, 'train'))


def others(allowed):
    """Names of all packages but ours and those of `allowed` distributions."""
    allowed = allowed | {'longmem-jax'}
    return {name for name, owners in packages().items() if not owners & allowed}


def run(installed, folder, hidden, *arguments):
    """Python with the package of the wheel, in an empty folder, and as if without `hidden` packages."""
    site, folder = folder / 'site', folder / 'empty'
    site.mkdir()
    folder.mkdir(exist_ok=True)
    (site / 'sitecustomize.py').write_text(HIDE.replace('{hidden}', repr(hidden)))
    surroundings = os.environ | environment(devices=1)
    surroundings['PYTHONPATH'] = f'{site}{os.pathsep}{installed}'
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True)


def test_configs_by_name(installed, tmp_path):
    """Found in the package, with all that they import: the last step before a run is refused."""
    arguments = ['--config=portal:tiny', '--config.train.num_stepz=3']
    ended = run(installed, tmp_path, LATE, '-m', 'longmem_jax.main', *arguments)
    assert 'ModuleNotFoundError' not in ended.stderr, (
        f'import it where it is used: starting takes longer\n{ended.stderr}'
    )
    assert ended.returncode == 2, ended.stderr
    assert "did you mean 'num_steps'" in ended.stderr, ended.stderr
    assert not list((tmp_path / 'empty').iterdir())


@pytest.mark.slow
def test_the_core_is_enough_for_the_quickstart(installed, core, tmp_path):
    hidden = others(core)
    assert {'pytest', 'sacrebleu', 'faiss'} <= hidden, 'nothing is hidden: the test says nothing'
    arguments = ['--config=configs/quickstart.py:tiny,memory=infini', '--workdir=run']
    arguments += ['--config.train.num_steps=2', '--config.evaluate.max_test_segments=2']
    ended = run(installed, tmp_path, hidden, '-m', 'longmem_jax.main', *arguments)
    assert ended.returncode == 0, (
        'add what is missing to [train] of setup.cfg, or import it where it is used:\n'
        + ended.stderr
    )
    assert (tmp_path / 'empty' / 'run' / 'learning_curve.png').stat().st_size
    assert 'gain by memory' in ended.stdout


@pytest.mark.parametrize(
    'arguments, what',
    [
        (['--config.data.path=train.csv'], 'train.csv needs the package pyarrow'),
        (
            ['--config.data.source=tfds', '--config.data.name=pg19'],
            "config.data.name = 'pg19': TFDS needs the package tensorflow_datasets",
        ),
    ],
)
def test_train_reads_texts_and_names_the_extra_for_the_rest(
    installed, core, tmp_path, arguments, what
):
    """In one line, before anything is compiled."""
    hidden = others(core)
    assert {'pyarrow', 'tensorflow_datasets', 'jinja2', 'gguf'} <= hidden, '[train] is too heavy'
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'empty' / 'train.csv').write_text('text\na\nb\nc\n')
    arguments = [
        '--config=quickstart:tiny',
        '--workdir=run',
        '--config.data.source=text',
        *arguments,
    ]
    ended = run(installed, tmp_path, hidden, '-m', 'longmem_jax.main', *arguments)
    said = f"UsageError: {what}: pip install 'longmem_jax[data]'.\n"
    assert (ended.returncode, ended.stderr) == (2, said), ended.stderr
    assert 'Compiling' not in ended.stdout


def test_all_has_what_commands_ask_for(installed):
    """But for what is large, for devices and other tools, or does not go together with the rest."""
    metadata = importlib.metadata.Distribution.at(next(installed.glob('*.dist-info'))).metadata
    apart = {'all', 'test', 'docs', 'browser', 'test-torch', 'tfds', 'popgym-arcade', 'craftax'}
    apart |= {'cuda12', 'tpu', 'tpu-aot'}
    extras = {*metadata.get_all('Provides-Extra')}
    assert apart <= extras
    least, everything = {*required(installed, 'train')}, {*required(installed, 'all')}
    for extra in extras - apart:
        assert least <= {*required(installed, extra)} <= everything, extra


def test_a_layer_needs_no_extra(installed, tmp_path):
    """And `import longmem_jax` nothing at all. What trains names the extra that it needs."""
    assert {*required(installed)} == {'jax', 'flax', 'numpy'}
    hidden = others(needed(required(installed)))
    assert {'matplotlib', 'ml_collections', 'tokenizers'} <= hidden
    ended = run(installed, tmp_path, hidden, '-c', LAYER)
    assert ended.returncode == 2, f'import what is missing where it is used:\n{ended.stderr}'
    assert ended.stderr.startswith('The package ') and 'longmem_jax[train]' in ended.stderr


@pytest.mark.parametrize(
    'command',
    [
        'commands.import_checkpoint',
        'commands.train_tokenizer',
        'hosts.commands.lm_eval',
        'hosts.commands.lm_eval_files',
        'lifelong.pretrain_encoder',
    ],
)
def test_every_command_names_the_extra_that_it_needs(installed, tmp_path, command):
    """In one line: `longmem_jax/hosts/commands/__init__.py` and its like look for it."""
    hidden = others(needed(required(installed)))
    ended = run(installed, tmp_path, hidden, '-m', f'longmem_jax.{command}', '--help')
    said = "The package ml_collections is missing: pip install 'longmem_jax[train]'.\n"
    assert (ended.returncode, ended.stderr) == (2, said), ended.stderr
