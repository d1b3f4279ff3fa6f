"""A link in the place of every name that any mode writes: what it leads to stays as it is.

Links that the user names are another thing: `store`, `tokens` and `book` of the commands lead to where
they write, see docs/reliability.md. Links inside of these folders are as all others.
"""

import os
import re
import shutil

import pytest

from tests.campaigns import modes, runs
from tests.forks import commands

pytestmark = pytest.mark.slow  # whole runs of all modes

# What is in a checkpoint, of which only its folder can be there before, and names with a time.
UNFORESEEN = re.compile(r'checkpoints(-broken)?/\d+/|/events[^/]*$')
PARTIAL = '.orbax-checkpoint-tmp'  # a checkpoint that is being written
REFUSED = 'already has'  # by commands that do not write again, whatever the name


def states(folder):
    """Of everything below a folder by name: what changes when it is written or replaced."""
    found = {}
    for path in folder.rglob('*'):
        about = path.lstat()
        written = () if path.is_dir() else (about.st_size, about.st_mtime_ns)
        found[str(path.relative_to(folder))] = (about.st_ino, about.st_mode, *written)
    return found


def can_be_links(names):
    """Names that a link can take the place of before the command begins."""
    found = []
    for name in sorted(names):
        if not UNFORESEEN.search(name):
            found.append(name)
        if re.search(r'(^|/)checkpoints/\d+$', name):
            found.append(name + PARTIAL)
    return found


def outermost(names):
    """Those in the folder of none of the others."""
    return [name for name in names if not any(name.startswith(f'{other}/') for other in names)]


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Mode:
    """A command in a folder, some names of which are links to copies."""

    def __init__(self, name, base, start, folder):
        self._name, self._base, self._start = name, base, start
        self._run, self.copies = folder / 'run', folder / 'copies'

    def prepare(self):
        """Makes the folder; returns its states."""
        self._arguments = modes.prepare(self._name, self._base, self._run)
        return states(self._run)

    def run(self):
        """Exit code, and what was printed."""
        module, cache = modes.MODES[self._name].module, self._base.parent / 'cache'
        process = self._start(self._arguments, module=module, cache=cache)
        if self._name == 'tokenize':  # with more cores it starts processes, the longest part of it
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(process.pid))})
        said, _ = process.communicate()
        return process.returncode, said

    def written(self, dangling):
        """The names that the command writes; makes copies of before and, not `dangling`, after it."""
        before = self.prepare()
        code, said = self.run()
        assert code == 0, said
        after = states(self._run)
        shutil.copytree(self._run, self.copies)
        if dangling:
            for path in [path for path in self.copies.rglob('*') if path.is_file()]:
                path.unlink()
        self.prepare()
        shutil.copytree(self._run, self.copies, dirs_exist_ok=True)
        # The user names these; a link is followed, but not that of `--output`.
        given = {a.partition(f'{self._run}/')[2] for a in self._arguments if '--output' not in a}
        return [name for name in after if after[name] != before.get(name) and name not in given]

    def plant(self, names):
        """Puts links into the folder of a new run."""
        self.prepare()
        for name in names:
            path = self._run / name
            remove(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(self.copies / name.removesuffix(PARTIAL))


def named(links, said):
    """Links that a message names; [] = it names none."""
    if REFUSED in said:
        return [name for name in links if 'checkpoints' in name] or links
    found = [name for name in links if f'run/{name}' in said or f'/{name}:' in said]
    return [max(found, key=len)] if found else []


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """The folder of the runs, and `start` of `commands`."""
    folder = tmp_path_factory.mktemp('links')
    with commands() as start:

        def run(arguments):
            process = start(arguments, cache=folder / 'cache')
            said, _ = process.communicate()
            assert process.returncode == 0, said

        runs.make(folder / 'base', run)
        yield folder / 'base', start


@pytest.mark.parametrize(
    'name, dangling',
    [(name, False) for name in modes.MODES if ', ' not in name]
    + [(name, True) for name in ('build_datastore', 'tokenize')],  # keep what is whole
)
def test_no_mode_writes_through_a_link(name, dangling, made, tmp_path):
    """Every link is replaced, left as it is, or refused in one message that names it.

    Variants (`evaluate, knn_lm`) write the same names as their modes.
    """
    mode = Mode(name, *made, tmp_path)
    left = can_be_links(mode.written(dangling))
    before = states(mode.copies)
    while left:
        links = outermost(left)
        mode.plant(links)
        code, said = mode.run()
        assert states(mode.copies) == before, f'wrote through one of {links}: use files.py'
        done = named(links, said) if code else links
        refused = code == 2 and 'Traceback' not in said and said.count('UsageError: ') == 1
        assert done and (code == 0 or refused), f'exit code {code} with {links}: {said}'
        left = [link for link in left if link not in done]
