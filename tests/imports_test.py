"""Imports go downward only: the package's rooms are on floors, and no modules import in a circle."""

import ast
import functools
from pathlib import Path

from longmem_jax import registry
from longmem_jax.commands import modes as of_command

ROOT = Path(__file__).parent.parent
PACKAGE = 'longmem_jax'

# A room is a folder or a module right inside of `longmem_jax`. It may import rooms of the floors
# before its own and itself, but not the other rooms of its floor.
FLOORS = (
    ('errors',),
    ('files', 'problems', 'subject'),
    ('registry',),
    ('untrusted', 'workdir'),
    ('segment',),
    ('host_layer', 'in_place', 'views'),
    ('contract', 'devices'),
    ('around', 'stopping'),
    ('kernels',),
    ('layers',),
    ('attention', 'author'),
    ('memory',),
    ('models', 'data', 'standalone'),
    ('config', 'named', 'nnx', 'reporting'),
    ('training',),
    ('experiment',),
    ('generation', 'released'),
    ('evaluation',),
    ('testing',),
    ('commands',),
    ('main', '__init__'),
    ('__main__',),
    ('hosts',),
    ('agents', 'lifelong', 'microscope', 'retrieval'),
)
# Folders that the core does not name; see `longmem_jax/subject.py`. They come in as entry points.
SUBJECTS = ('hosts', 'agents', 'lifelong', 'microscope', 'retrieval')
# A room that may import less than its floor allows.
ONLY = {'data': ('errors', 'files', 'problems', 'registry', 'untrusted', 'segment')}
# What a file in `configs/` may import, and one other config.
CONFIGS = 'configs'
CONFIGS_MAY = tuple(
    f'{PACKAGE}.{room}'
    for room in (
        'config', 'errors', 'data.sets', 'data.tasks', 'hosts.classifiers', 'hosts.data',
        'hosts.grafting', 'lifelong.settings', 'agents.settings',
    )
)  # fmt: skip


@functools.cache
def modules():
    """Name of every module of the package and of `configs/` to its file, relative to the root."""
    named = {}
    for file in sorted(ROOT.glob(f'{PACKAGE}/**/*.py')) + sorted(ROOT.glob('configs/*.py')):
        path = file.relative_to(ROOT)
        # `longmem_jax/configs` is a link to `configs`.
        parts = (PACKAGE, *path.parts) if path.parts[0] == 'configs' else path.parts
        parts = (*parts[:-1], path.stem)
        named['.'.join(parts[:-1] if parts[-1] == '__init__' else parts)] = path
    return named


@functools.cache
def imports(path):
    """(line, module) of all imports of our modules in a file, also inside functions."""
    known, found = modules(), set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f'{path}:{node.lineno}: write the whole name of the module'
            whole = [f'{node.module}.{alias.name}' for alias in node.names]
            names = [name if name in known else node.module for name in whole]
        found |= {(node.lineno, name) for name in names if name in known}
    return sorted(found)


def room(module):
    """The folder or file right inside of the package that a module belongs to."""
    parts = module.split('.')
    return parts[1] if len(parts) > 1 else '__init__'


def upward():
    """(file, line, imported module, what to do) of every import that is not downward."""
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    for module, path in modules().items():
        own = room(module)
        if own == CONFIGS:
            continue
        allowed = {name for name in floor if floor[name] < floor.get(own, -1)}
        allowed = set(ONLY.get(own, allowed)) | {own}
        for line, imported in imports(path):
            if room(imported) == CONFIGS:
                yield path, line, imported, 'the package does not import configs'
            elif room(imported) not in allowed:
                yield (
                    path,
                    line,
                    imported,
                    f'`{own}` may import {", ".join(sorted(allowed))}; move what is needed to one of '
                    'these, or pass it as an argument',
                )


def of_configs():
    """The same for `configs/`."""
    for module, path in modules().items():
        if room(module) != CONFIGS:
            continue
        found = imports(path)
        for line, imported in found:
            if room(imported) != CONFIGS and not imported.startswith(CONFIGS_MAY):
                yield (
                    path,
                    line,
                    imported,
                    f'a config may import {", ".join(CONFIGS_MAY)}; offer the choice through '
                    '`longmem_jax.config`, or name it in the config',
                )
        for line, imported in [pair for pair in found if room(pair[1]) == CONFIGS][1:]:
            yield path, line, imported, 'a config may build on one other config only'


def names_of_subjects():
    """Names that subjects bring, and that are no words of the core too."""
    found = {*SUBJECTS}
    for subject in registry.SUBJECTS.values():
        found |= {*subject.sections, *subject.kinds, *subject.sources}
        found |= {mode.name for mode in subject.modes} - {mode.name for mode in of_command.OWN}
    return found


def named_in_core():
    """(file, line, name) of every text in the core that is a name of a subject."""
    names = names_of_subjects()
    for module, path in modules().items():
        if room(module) in (*SUBJECTS, CONFIGS):
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Constant) and node.value in names:
                yield path, node.lineno, node.value
            elif isinstance(node, ast.Attribute) and node.attr in names - {*SUBJECTS}:
                yield path, node.lineno, node.attr


def circles():
    """Modules that import each other, as sets."""
    graph = {
        module: {name for _, name in imports(path) if name != module}
        for module, path in modules().items()
    }

    @functools.cache
    def reached(start):
        seen, waiting = set(), [start]
        while waiting:
            for name in graph[waiting.pop()] - seen:
                seen.add(name)
                waiting.append(name)
        return seen

    return {
        frozenset(other for other in reached(module) if module in reached(other))
        for module in graph
        if module in reached(module)
    }


def test_every_room_has_a_floor():
    known = {name for names in FLOORS for name in names}
    missing = sorted({room(module) for module in modules()} - known - {CONFIGS})
    assert not missing, f'give {missing} a floor in FLOORS of tests/imports_test.py'


def test_imports_run_downward():
    broken = [
        f'{path}:{line}: imports {imported}: {advice}'
        for path, line, imported, advice in (*upward(), *of_configs())
    ]
    assert not broken, 'imports that are not downward:\n' + '\n'.join(broken)


def test_the_core_names_no_subject():
    found = [
        f'{path}:{line}: {name!r}: let the subject bring it, see longmem_jax/subject.py'
        for path, line, name in named_in_core()
    ]
    assert not found, '\n'.join(found)


def test_every_subject_has_an_entry_point():
    assert {*registry.SUBJECTS} >= {*SUBJECTS}, (
        'add it to setup.cfg, and run pip install -e . again'
    )


def test_no_circles():
    found = [' <-> '.join(sorted(circle)) for circle in circles()]
    assert not found, (
        'modules that import each other; move what both need to a module of its own:\n'
        + '\n'.join(sorted(found))
    )
