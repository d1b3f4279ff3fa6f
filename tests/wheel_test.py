"""The package as others install it: a wheel, used in a folder where there is no checkout."""

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.processes import environment

ROOT = Path(__file__).parent.parent
BUILD = 'from setuptools import build_meta; print(build_meta.build_wheel("."))'


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """The wheel of this checkout."""
    source = tmp_path_factory.mktemp('source')
    for name in ('setup.cfg', 'pyproject.toml', 'README.md', 'LICENSE'):
        shutil.copy(ROOT / name, source)
    without = shutil.ignore_patterns('__pycache__')
    for name in ('longmem_jax', 'configs'):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=without)
    subprocess.run([sys.executable, '-c', BUILD], cwd=source, check=True)
    return next(source.glob('*.whl'))


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


def test_console_script(installed):
    entries = configparser.ConfigParser()
    entries.read(next(installed.glob('*.dist-info/entry_points.txt')))
    assert entries['console_scripts']['longmem'] == 'longmem_jax.main:main'


def run(installed, folder, *arguments):
    """The command with the package of the wheel, in a folder."""
    surroundings = os.environ | environment(devices=1) | {'PYTHONPATH': str(installed)}
    command = [sys.executable, '-m', 'longmem_jax.main', *arguments]
    return subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True)


def test_configs_by_name(installed, tmp_path):
    """Found in the package, with all that they import: the last step before a run is refused."""
    for config in ('portal:tiny', 'configs/quickstart.py:tiny,memory=infini'):
        ended = run(installed, tmp_path, f'--config={config}', '--config.train.num_stepz=3')
        assert ended.returncode == 2, ended.stderr
        assert "did you mean 'num_steps'" in ended.stderr, ended.stderr
    assert not list(tmp_path.iterdir())
