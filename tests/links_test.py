"""A link in the place of every name that any mode writes: what it leads to stays as it is."""

import shutil
from pathlib import Path

import pytest

from tests.campaigns import modes, runs
from tests.forks import commands

pytestmark = pytest.mark.slow  # whole runs of all modes

CHECKPOINTS = ('checkpoints', 'checkpoints-broken')
UNFORESEEN = ('events',)  # names that begin so differ in every run


def states(folder):
    """Of everything below a folder by name: what changes when it is written or replaced."""
    found = {}
    for path in folder.rglob('*'):
        about = path.lstat()
        written = () if path.is_dir() else (about.st_size, about.st_mtime_ns)
        found[str(path.relative_to(folder))] = (about.st_ino, about.st_mode, *written)
    return found


def by_depth(names):
    """Names that a link can take the place of, those in the outermost folders first."""
    levels = {}
    for name in sorted(names):
        *parents, last = name.split('/')
        inside = (
            parents and parents[-1].isdecimal() and parents[-2:-1] in [[c] for c in CHECKPOINTS]
        )
        if last.startswith(UNFORESEEN) or inside or 'checkpoints' in parents[:-1]:
            continue
        level = levels.setdefault(len(parents), [])
        level.append(name)
        if parents[-1:] == ['checkpoints'] and last.isdecimal():
            level.append(f'{name}.orbax-checkpoint-tmp')
    return [levels[depth] for depth in sorted(levels)]


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Mode:
    """A command in a folder, some names of which are links to copies."""

    def __init__(self, name: str, folder: Path, start):
        self.name, self._start = name, start
        self._base, self._run, self.copies = folder / 'base', folder / 'run', folder / 'copies'
        self._cache = folder / 'cache'

    def prepare(self):
        """Makes the folder; returns its states."""
        self._arguments = modes.prepare(self.name, self._base, self._run)
        return states(self._run)

    def run(self):
        """Exit code, and what was printed."""
        module = modes.MODES[self.name].module
        process = self._start(self._arguments, module=module, cache=self._cache)
        said, _ = process.communicate()
        return process.returncode, said

    def written(self):
        """The names that the command writes; makes the copies, as they are before or after it."""
        before = self.prepare()
        code, said = self.run()
        assert code == 0, f'{self.name}: {said}'
        after = states(self._run)
        remove(self.copies)
        shutil.copytree(self._run, self.copies)
        self.prepare()
        shutil.copytree(self._run, self.copies, dirs_exist_ok=True)
        # A link that the user names is the user's: it leads where to write.
        given = {argument.partition(f'{self._run}/')[2] for argument in self._arguments}
        return [name for name in after if after[name] != before.get(name) and name not in given]

    def plant(self, names):
        """Puts links into the folder of a new run."""
        self.prepare()
        for name in names:
            path, target = self._run / name, self.copies / name
            remove(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith('.orbax-checkpoint-tmp'):
                target = target.with_suffix('')
            path.symlink_to(target)


def followed(mode: Mode) -> list[str]:
    """What went wrong with links in the places of names that a mode writes."""
    wrong, levels = [], by_depth(mode.written())
    before = states(mode.copies)
    for level in levels:
        links = list(level)
        while links:
            mode.plant(links)
            code, said = mode.run()
            if states(mode.copies) != before:
                return [*wrong, f'{mode.name}: wrote through one of {links}']
            if code == 0:
                break
            if code == 2 and 'already has' in said:  # by a command that never writes twice
                break
            named = [name for name in links if f'run/{name}' in said or f'/{name}:' in said]
            if code != 2 or 'Traceback' in said or not named:
                wrong.append(f'{mode.name}: exit code {code} with {links}: {said[-600:]}')
                break
            links.remove(max(named, key=len))
    return wrong


def test_no_mode_writes_through_a_link(tmp_path):
    """Every link is replaced, or refused in a message that names it."""
    with commands() as start:

        def run(arguments):
            process = start(arguments, cache=tmp_path / 'cache')
            said, _ = process.communicate()
            assert process.returncode == 0, said

        runs.make(tmp_path / 'base', run)
        wrong = [line for name in modes.MODES for line in followed(Mode(name, tmp_path, start))]
    assert not wrong, '\n'.join(wrong)
