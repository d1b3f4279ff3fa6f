"""A package of somebody else: its memory and its task are used as ours are, without a change here."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from flax import linen as nn

import longmem_jax
from longmem_jax import registry
from longmem_jax.commands import modes
from longmem_jax.config.base import base
from longmem_jax.config.checks import require_runnable
from longmem_jax.config.saved import restored
from longmem_jax.config.sections import sections
from longmem_jax.contract import LayerType, Recipes
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.errors import UsageError
from longmem_jax.memory.registry import LAYERS
from longmem_jax.named import by_name, class_names
from tests import forks
from tests.processes import environment
from tests.wheel_test import build

SOURCE = Path(__file__).parent / 'foreign'
THEIRS = '--config=quickstart:tiny,memory=theirs'
TASK = (
    '--config.data.source=echo', "--config.data.task={'gap': 40}", '--config.train.num_steps=2',
    '--config.generate.sample_length=0',
)  # fmt: skip
BROKEN = """
[longmem_jax.memories]
broken = longmem_broken:ENTRY
[longmem_jax.subjects]
broken = longmem_broken:SUBJECT
"""


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
    """A folder in which the package is installed, and another one that cannot be imported."""
    source, site = (tmp_path_factory.mktemp(name) for name in ('source', 'site'))
    shutil.copytree(SOURCE, source, dirs_exist_ok=True)
    wheel = build('wheel', source)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    about = site / 'longmem_broken-7.0.dist-info'
    about.mkdir()
    (about / 'METADATA').write_text('Metadata-Version: 2.1\nName: longmem-broken\nVersion: 7.0\n')
    (about / 'entry_points.txt').write_text(BROKEN)
    (site / 'longmem_broken.py').write_text("raise RuntimeError('of an older jax')\n")
    return site


@pytest.fixture(scope='module')
def start(installed):
    """As `forks.start`, with the packages."""
    with forks.commands(path=str(installed)) as made:
        yield made


def answered(start, *arguments, **options):
    """What a command prints, after its end with a code."""
    process = start(list(arguments), **options)
    out, _ = process.communicate()
    return process.returncode, out


@pytest.fixture(scope='module')
def run(start, tmp_path_factory):
    """The folder of a run of their memory on their task, and what training printed."""
    workdir = tmp_path_factory.mktemp('run')
    code, out = answered(start, THEIRS, *TASK, f'--workdir={workdir}')
    assert code == 0, out
    return workdir, out


def test_their_memory_learns_their_task(run):
    workdir, out = run
    assert 'memory theirs' in out and 'accuracy' in out
    stored = json.loads((workdir / 'config.json').read_text())
    assert stored['packages'] == dict.fromkeys(('echo', 'theirs'), 'longmem-theirs 0.1')


def test_a_run_without_its_package_says_what_to_install(run):
    stored = json.loads((run[0] / 'config.json').read_text())
    with pytest.raises(UsageError, match="'echo'.*longmem-theirs 0.1: pip install longmem-theirs"):
        restored(stored, 'config.json')
    stored['packages'] = {'theirs': ''}
    with pytest.raises(UsageError, match='register, which must be called first'):
        restored(stored, 'config.json')
    stored['packages'] = ['theirs']
    with pytest.raises(UsageError, match='must be names with packages'):
        restored(stored, 'config.json')


def test_the_run_goes_on_from_its_folder(run, start):
    code, out = answered(start, f'--workdir={run[0]}', '--mode=floors')
    assert code == 0 and 'first' in out, out


def test_a_broken_package_stops_only_those_who_use_it(start, tmp_path):
    """One line names it, whatever it adds."""
    code, out = answered(start, '--mode=list')
    lines = [line for line in out.splitlines() if 'longmem-broken' in line]
    assert code == 0 and 'theirs: ' in out and lines and len({*lines}) == len(lines), lines
    assert all('RuntimeError: of an older jax); update or uninstall it' in line for line in lines)
    given = ('--config=quickstart:tiny', "--config.model.attention=('broken', 'broken')")
    code, out = answered(start, *given, f'--workdir={tmp_path}')
    assert code == 2 and "memory 'broken': the package longmem-broken cannot be loaded" in out


def test_without_metadata_the_command_says_to_install():
    program = (
        'import importlib.metadata as m; m.distributions = lambda: []; '
        'from longmem_jax.main import main; main()'
    )
    ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
    assert ended.returncode == 2 and 'pip install -e .' in ended.stderr, ended.stderr


def test_a_section_that_nobody_brings_is_named():
    content = base().to_dict() | {'theirs': dict(kind='none')}
    with pytest.raises(UsageError, match="no section 'theirs'.*package"):
        restored(json.loads(json.dumps(content)), 'config.json')


@pytest.mark.slow
def test_their_memory_in_a_decoder_and_on_a_page(start, tmp_path):
    config = '--config=host:tiny,memory=theirs'
    steps = ('--config.train.num_steps=2', '--config.evaluate.max_test_segments=2')
    code, out = answered(start, config, *steps, f'--workdir={tmp_path / "run"}')
    assert code == 0 and 'theirs' in out, out
    page = tmp_path / 'page.html'
    options = ('--mode=inspect', '--prompt=def f(x): return x', f'--output={page}')
    code, out = answered(start, f'--workdir={tmp_path / "run"}', *options)
    assert code == 0, out
    assert 'theirs' in page.read_text()


@pytest.mark.slow
def test_their_memory_keeps_the_promises_of_the_suite(installed):
    program = (
        'from longmem_jax.testing import conformance; cases = conformance.cases("theirs"); '
        'assert len(cases) > 10; [conformance.check(*case) for case in cases]'
    )
    variables = environment() | {'PYTHONPATH': str(installed)}
    command = [sys.executable, '-c', program]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert ended.returncode == 0, ended.stderr


def test_a_name_is_registered_once_and_unknown_ones_are_suggested(monkeypatch):
    monkeypatch.setattr(registry, '_registered', {kind: {} for kind in registry.GROUPS})
    longmem_jax.register('task', 'echo', 'tests.foreign.longmem_theirs:TASK')
    try:
        assert TASKS['echo'].rules and 'echo' in TASKS and registry.foreign()['echo'] == ''
        with pytest.raises(UsageError, match="task = 'ecko': did you mean 'echo'"):
            TASKS['ecko']
        for given, message in (
            (('task', 'echo', 'another:TASK'), 'is registered already'),
            (('tusk', 'echo', None), "did you mean 'task'"),
            (('task', 'e-cho', None), 'must be letters'),
        ):
            with pytest.raises(UsageError, match=message):
                longmem_jax.register(*given)
        longmem_jax.register('task', 'wrong', 'tests.foreign.longmem_theirs:ENTRY')
        with pytest.raises(
            UsageError, match='must be of the type longmem_jax.data.tasks.registry.Task'
        ):
            TASKS['wrong']
    finally:
        registry._names.cache_clear()


def test_the_tests_see_no_installed_memory_of_others(installed):
    program = (
        'import importlib.metadata; from tests.packages import hide_theirs; '
        'before = [d.metadata["Name"] for d in importlib.metadata.distributions()]; hide_theirs(); '
        'after = [d.metadata["Name"] for d in importlib.metadata.distributions()]; '
        'assert {*before} - {*after} >= {"longmem-theirs", "longmem-broken"}, before; '
        'assert "longmem-jax" in {name.replace("_", "-") for name in after}, after; '
        'from longmem_jax.memory.registry import LAYERS; assert "theirs" not in LAYERS'
    )
    variables = environment() | {'PYTHONPATH': f'{installed}{os.pathsep}{SOURCE.parent.parent}'}
    command = [sys.executable, '-c', program]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A function that installs packages, `name=(metadata, entry points, code)`, for this process."""

    def clear():
        for cached in (registry._entry_points, registry._names, by_name):
            cached.cache_clear()

    def install(**packages):
        for name, (metadata, points, code) in packages.items():
            about = tmp_path / f'{name}-1.0.dist-info'
            about.mkdir()
            (about / 'METADATA').write_text(metadata or f'Name: {name}\nVersion: 1.0\n')
            (about / 'entry_points.txt').write_text(points)
            (tmp_path / f'{name}.py').write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        clear()

    known = {*sys.modules}
    monkeypatch.setattr(registry, '_registered', {kind: {} for kind in registry.GROUPS})
    monkeypatch.setattr(registry, '_said', set())
    yield install
    monkeypatch.undo()
    clear()
    for name in {path.stem for path in tmp_path.glob('*.py')} & ({*sys.modules} - known):
        del sys.modules[name]


CODE = (SOURCE / 'longmem_theirs.py').read_text()


def entry_of(code):
    """The entry that a module defines."""
    found = {'__name__': 'theirs'}
    exec(code, found)
    return found['ENTRY']


def points(*names, module):
    """Entry points of memories."""
    return '\n'.join(
        ['[longmem_jax.memories]', *(f'{name} = {module}:ENTRY' for name in names), '']
    )


def test_packages_with_wrong_metadata_or_names_are_left_out(site, capsys):
    site(
        nameless=('Version: 1.0\n', points('a', module='nameless'), ''),
        damaged=('', '[longmem_jax.memories]\nwithout_a_value\n', ''),
        dashed=('', points('their-window', module='dashed'), ''),
        twin_a=('', points('theirs', module='twin_a'), CODE),
        twin_b=('', points('theirs', module='twin_b'), ''),
        whole=('', '[longmem_jax.memories]\nwhole = whole\n', ''),
        leaving=('', points('leaving', module='leaving'), "raise SystemExit('bye')"),
    )
    assert LAYERS['theirs'].layer.module.__module__ == 'twin_a'  # on every machine
    assert 'their-window' not in LAYERS and 'leaving' not in dict(LAYERS.items())
    assert registry.foreign() == {
        'theirs': 'twin-a 1.0', 'whole': 'whole 1.0', 'leaving': 'leaving 1.0'
    }  # fmt: skip
    said = capsys.readouterr().err
    for line in (
        r'metadata cannot be read [(].*nameless-1.0.dist-info: ',
        r'metadata cannot be read [(].*damaged-1.0.dist-info: ',
        "memory 'their-window' of dashed: must be letters",
        "memory 'theirs' of twin-b: there is one of that name, of twin-a; choose",
        "memory 'whole': .* .whole: ValueError: names no object; write 'whole:ENTRY'.*if it is yours",
        "memory 'leaving': the package leaving cannot be loaded .leaving:ENTRY: SystemExit: bye",
    ):
        assert re.search(line, said), (line, said)


def test_a_name_of_ours_stays_ours(site):
    """The memory, the class, the section, the option, and what a run says of its packages."""
    code = CODE.replace('TheirWindow', 'InfiniAttention')
    subject = """
from longmem_jax.subject import Flag, Mode, Section, Subject
SUBJECT = Subject('theirs', {'retrieval': Section('theirs:make', 'kind')}, (
    Mode('theirs', 'theirs:run', (Flag('prompt', 3, 'a number', int),)),))
"""
    listed = points('linear', 'theirs', module='theirs')
    ours = longmem_jax.InfiniAttention.__doc__, LAYERS['linear'], sections()['retrieval']
    site(theirs=('', f'{listed}[longmem_jax.subjects]\ntheirs = theirs:SUBJECT\n', code + subject))
    assert LAYERS['theirs'].layer.module.__name__ == 'InfiniAttention'
    assert class_names()['InfiniAttention'] == 'infini'
    found = longmem_jax.InfiniAttention.__doc__, LAYERS['linear'], sections()['retrieval']
    assert found == ours
    assert modes.all_flags()['prompt'] == modes.FLAGS['prompt']
    assert registry.foreign() == {'theirs': 'theirs 1.0'}


def test_a_run_does_not_take_the_memory_of_another_package(site):
    site(theirs=('', points('theirs', module='theirs'), CODE))
    stored = json.loads(json.dumps(base().to_dict())) | {'packages': {'theirs': 'theirs 0.9'}}
    restored(stored, 'config.json')
    stored['packages'] = {'theirs': 'another 1.0'}
    with pytest.raises(
        UsageError, match='another 1.0, and here it is of theirs 1.0: pip uninstall'
    ):
        restored(stored, 'config.json')


def test_names_of_fields_are_refused(site):
    code = f"""{CODE.replace("name='theirs'", "name='num_heads'")}
from longmem_jax.subject import Section, Subject
SUBJECT = Subject('theirs', {{'mesh': Section('theirs:make', 'kind')}})
"""
    listed = points('num_heads', module='theirs')
    site(theirs=('', f'{listed}[longmem_jax.subjects]\ntheirs = theirs:SUBJECT\n', code))
    with pytest.raises(UsageError) as error:
        require_runnable(base(), 1)
    for name in ("memory 'num_heads'", 'config.model.num_heads', "section 'mesh'", 'config.mesh'):
        assert name in str(error.value)


def test_what_is_registered_is_checked_and_used_at_once(site):
    site()
    entry = entry_of(CODE)
    for name, value, message in (
        ('linear', dataclasses.replace(entry, name='linear'), 'there is one of that name'),
        ('copied', TASKS['copy'], 'must be of the type longmem_jax.contract.Entry, not Task'),
        ('another', entry, "its name is 'theirs'; use one name"),
        (None, entry, 'must be letters'),
    ):
        with pytest.raises(UsageError, match=message):
            longmem_jax.register('memory', name, value)
    longmem_jax.register('memory', 'nowhere', 'not_there:ENTRY')
    assert 'nowhere' not in dict(LAYERS.items())
    with pytest.raises(UsageError, match="'nowhere': it cannot be loaded .*not_there.*correct"):
        LAYERS['nowhere']
    longmem_jax.register('memory', 'theirs', entry)
    assert 'TheirWindow' in dir(longmem_jax)
    assert longmem_jax.TheirWindow is longmem_jax.TheirWindow
    with pytest.raises(UsageError, match='registered already.*start a new process'):
        longmem_jax.register('memory', 'theirs', dataclasses.replace(entry, toy={'a': 1}))


class Layer(LAYERS['local'].layer.module):
    """A layer of theirs with fields of its own."""

    size: int = 4
    number = 4


class WithoutDefault(nn.Module):
    """A field without a default."""

    settings: Any
    normalize: Any
    shared: Any
    size: int


class WithoutTrain(Layer):
    """A method that is called otherwise."""

    def __call__(self, x, state, segment):
        return x, state, None


class WithoutRoom:
    """No module."""


def of_layer(module, **others):
    """The entry of a layer, with other records."""
    local = LAYERS['local']
    layer = dataclasses.replace(local.layer, module=module)
    return dataclasses.replace(
        local, **(dict(name='wrong', layer=layer, recipe=Recipes()) | others)
    )


@pytest.mark.parametrize(
    'entry, message',
    [
        (of_layer(Layer, layer=Layer), r'layer = Layer: must be a contract.LayerType\('),
        (of_layer(Layer, recipe=len), r'recipe = len: must be a contract.Recipes\('),
        (of_layer(Layer, graft='yes'), r"graft = 'yes': must be a contract.Graft\("),
        (of_layer(Layer, place='atention'), "place = 'atention': did you mean 'attention'"),
        (of_layer(WithoutRoom), 'layer.module = WithoutRoom: must be a class derived from flax'),
        (of_layer(nn.Dense), 'Dense has no settings, normalize, shared: declare settings: Model'),
        (of_layer(WithoutDefault), 'WithoutDefault.size: has no default; write the value of the'),
        (
            of_layer(WithoutTrain),
            r'__call__\(self, x, state, segment\): must take \(self, x, state, segment, \*, train\)',
        ),
        (of_layer(Layer, toy=dict(sise=2)), "toy: Layer has no field 'sise': did you mean 'size'"),
        (
            of_layer(Layer, variants=dict(long=dict(number=2))),
            'Layer.number is no field, since it has no type; write number: int = 4',
        ),
        (
            of_layer(Layer, layer=LayerType(Layer, reach=lambda fields, segment: fields['sise'])),
            "layer.reach: KeyError: 'sise'; it is called with the fields .*'size': 4.* and the tokens",
        ),
        (of_layer(Layer, recipe=Recipes({'wrong': {}})), "recipe 'wrong' = {}: must be a function"),
        (
            of_layer(Layer, recipe=Recipes({'t2r': lambda scale: None})),
            "recipe 't2r': there is a memory=t2r of ours; choose another name",
        ),
    ],
)
def test_an_entry_that_is_not_sound_is_refused_with_what_to_write(site, entry, message):
    """By itself; the memories of others work on."""
    site()
    with pytest.raises(UsageError, match=message):
        longmem_jax.register('memory', 'wrong', entry)
    registry._registered['memory']['wrong'] = entry  # as a package has it
    registry._names.cache_clear()
    assert 'wrong' not in dict(LAYERS.items())
    longmem_jax.configure('quickstart:tiny,memory=t2r')


def test_a_recipe_that_gives_something_else_is_told_what_to_give(site):
    site()
    entry = of_layer(Layer, recipe=Recipes({'wrong': lambda scale: dict(size=2)}))
    longmem_jax.register('memory', 'wrong', entry)
    with pytest.raises(
        UsageError, match=r"its recipe gives {'size': 2}; it must give a contract.Rec"
    ):
        longmem_jax.configure('quickstart:tiny,memory=wrong')


def test_a_layer_without_a_recipe_is_told_to_give_one(site):
    site()
    longmem_jax.register('memory', 'wrong', of_layer(Layer))
    with pytest.raises(UsageError, match="'wrong': a layer without a recipe; give its Entry one"):
        longmem_jax.configure('quickstart:tiny,memory=wrong')


def test_a_registry_refuses_what_was_registered_before_it(site):
    """Each time, until it is taken away; our own is not replaced."""
    own = LAYERS['linear']
    registry._registered['memory']['linear'] = entry_of(CODE)
    site()
    for _ in range(2):
        with pytest.raises(UsageError, match="'linear': there is one of that name.*new process"):
            LAYERS['full']
    registry.unregister('memory', 'linear')
    assert LAYERS['linear'] is own and registry.foreign() == {}


@pytest.mark.parametrize(
    'name, message',
    [
        ('infini', 'there is one of that name'),
        ('num_heads', 'configs have a config.model.num_heads; choose another name'),
        ('seq2seq', 'configs have a config.model.seq2seq'),
    ],
)
def test_taken_names_are_refused_by_register_itself(name, message):
    """In a new process, in which nothing else is loaded yet; what follows works."""
    program = (
        'import longmem_jax\n'
        'from longmem_jax.errors import UsageError\n'
        'try:\n'
        f'    longmem_jax.register("memory", {name!r}, "tests.foreign.longmem_theirs:ENTRY")\n'
        'except UsageError as error:\n'
        '    print(error)\n'
        'print(longmem_jax.configure("quickstart:tiny").model.num_heads)\n'
    )
    ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
    said, heads = ended.stdout.splitlines()
    assert message in said and int(heads) > 0, ended.stderr


def test_entry_points_are_found_through_the_backport():
    """Sphinx, lm-eval and others import `importlib_metadata`, which then finds all packages."""
    pytest.importorskip('importlib_metadata')
    program = (
        'import importlib_metadata; from longmem_jax.registry import SUBJECTS; '
        'assert {"hosts", "agents", "lifelong"} <= {name for name, _ in SUBJECTS.items()}'
    )
    ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_import_sets_nothing():
    """No thread, no handler, no library: what a command needs is set by `main`."""
    program = (
        'import signal, sys, threading; before = {*sys.modules}, signal.getsignal(signal.SIGTERM); '
        'sys.argv = ["longmem"]; import longmem_jax; '
        'new = {m.partition(".")[0] for m in {*sys.modules} - before[0]} - sys.stdlib_module_names; '
        'assert new == {"longmem_jax"} and threading.active_count() == 1, new; '
        'assert signal.getsignal(signal.SIGTERM) == before[1]; '
        'from longmem_jax.devices import allocator; assert not allocator._kept; '
        'from longmem_jax.commands import switchboard; assert "jax" not in sys.modules'
    )
    ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
