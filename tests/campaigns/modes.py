"""The commands that the campaign kills and whose calls it lets fail, and what undisturbed ones make."""

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaigns import runs

HANGS = 900.0  # seconds after which a command is said to hang
MAIN = 'longmem_jax.main'
CLOCK = os.sysconf('SC_CLK_TCK')


@dataclasses.dataclass(frozen=True)
class Mode:
    """A command and the folder that it works in.

    Attributes:
      copied: what the folder begins with, of the runs of `runs.make`; 'NAME/config.json' = nothing but
        the configuration.
      arguments: of the command; {folder} is the folder, {base} that of the runs.
      module: the command.
      fresh: what it writes, of which nothing is there when it begins.
      once: it refuses to write again what it has finished.
    """

    copied: tuple[str, ...]
    arguments: tuple[str, ...]
    module: str = MAIN
    fresh: tuple[str, ...] = ()
    once: bool = False


PRINTED = 'printed: '
LM, SHORT = '--workdir={folder}/lm', '--workdir={folder}/short'
STORE = '--config.retrieval.datastore={folder}/store'
TOKENS = '--config.data.tokenized={folder}/tokens'
PROMPT = '--prompt=@{base}/prompt.txt'
MODES = {
    'train': Mode(('short/config.json',), (SHORT,)),
    'train, resumed': Mode(('short',), (SHORT, '--config.train.num_steps=12')),
    'train, tokens': Mode(('short/config.json', 'tokens'), (SHORT, TOKENS)),
    'train, translator': Mode(('translator/config.json',), ('--workdir={folder}/translator',)),
    'train, classifier': Mode(('classifier/config.json',), ('--workdir={folder}/classifier',)),
    'train, host': Mode(('hosted/config.json',), ('--workdir={folder}/hosted',)),
    'lifelong': Mode(('lifelong/config.json',), ('--workdir={folder}/lifelong',)),
    'agent': Mode(('agent/config.json',), ('--workdir={folder}/agent',)),
    'tokenize': Mode(('lm',), (LM, '--mode=tokenize', TOKENS)),
    'build_datastore': Mode(('lm',), (LM, '--mode=build_datastore', STORE)),
    'train_spalm': Mode(
        ('lm', 'store'), (LM, '--mode=train_spalm', STORE), fresh=('lm/spalm', 'lm/spalm_neighbours')
    ),
    'evaluate': Mode(('lm',), (LM, '--mode=evaluate')),
    'evaluate, knn_lm': Mode(
        ('lm', 'store'), (LM, '--mode=evaluate', STORE, '--config.retrieval.kind=knn_lm')
    ),
    'evaluate, translator': Mode(
        ('translator',), ('--workdir={folder}/translator', '--mode=evaluate')
    ),
    'evaluate, classifier': Mode(
        ('classifier',), ('--workdir={folder}/classifier', '--mode=evaluate')
    ),
    'evaluate, lifelong': Mode(('lifelong',), ('--workdir={folder}/lifelong', '--mode=evaluate')),
    'generate': Mode(
        ('lm',),
        (LM, '--mode=generate', PROMPT, '--length=20', '--seed=1', '--save_state={folder}/book'),
    ),
    'generate, memory': Mode(
        ('lm', 'book'),
        (LM, '--mode=generate', PROMPT, '--length=9', '--seed=1', '--load_state={folder}/book'),
    ),
    'generate, host': Mode(
        ('hosted',),
        # A short one: the host has positions for 32 tokens.
        ('--workdir={folder}/hosted', '--mode=generate', '--prompt=alpha', '--length=9', '--seed=1'),
    ),
    'score': Mode(('lm',), (LM, '--mode=score', PROMPT, '--output={folder}/scores.jsonl')),
    'inspect': Mode(('lm',), (LM, '--mode=inspect', PROMPT, '--output={folder}/page.html')),
    'floors': Mode(('lm',), (LM, '--mode=floors'), fresh=('lm/floors.json',)),
    'play': Mode(
        ('agent',), ('--workdir={folder}/agent', '--mode=play', '--seed=3'), fresh=('agent/play',)
    ),
    'export': Mode(
        ('hosted',), ('--workdir={folder}/hosted', '--mode=export', '--folder={folder}/out'),
        once=True,
    ),
    'blimp': Mode(
        ('lm',), (LM, '--data={base}/blimp', '--checkpoints=all'), 'experiments.hosts.blimp'
    ),
    'import_checkpoint': Mode(
        ('imported/config.json',),
        ('--workdir={folder}/imported', '--config={base}/imported/config.json',
         '--weights={base}/theirs/weights', '--settings={base}/theirs/settings'),
        'longmem_jax.commands.import_checkpoint', once=True,
    ),
    'train_tokenizer': Mode(
        (), ('--path={base}/texts', '--size=270', '--output={folder}/bpe.json'),
        'longmem_jax.commands.train_tokenizer',
    ),
}  # fmt: skip


def prepare(name: str, base: Path, folder: Path) -> list[str]:
    """Makes the folder as it is before the command of a mode; returns its arguments."""
    mode = MODES[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in mode.copied:
        source, target = base / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    for part in mode.fresh:
        path = folder / part
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return [argument.format(folder=folder, base=base) for argument in mode.arguments]


def result(folder: Path, said: str) -> dict[str, Any]:
    """What came out of a command: what is in its folder, and every line that it printed."""
    lines = {PRINTED + line.strip(): True for line in said.splitlines() if line.strip()}
    return runs.outcome(folder) | lines


@dataclasses.dataclass(frozen=True)
class Whole:
    """What comes out of a command that nobody disturbs.

    Attributes:
      wanted: what is the same in all runs.
      unstable: names of what is not: times and speeds.
      seconds: CPU time.
    """

    wanted: dict[str, Any]
    unstable: frozenset[str]
    seconds: float

    def differs(self, folder: Path, said: str | None = None) -> list[str]:
        """What else came out of a command that ended well; if `said` is given, it may say more."""
        found, wanted = result(folder, said or ''), self.wanted
        names = {k for k in {*found, *wanted} - self.unstable if not k.startswith(PRINTED)}
        if said is not None:
            names |= {k for k in wanted if k.startswith(PRINTED)}
        return [
            f'{k}: {found.get(k)} for {wanted.get(k)}'
            for k in sorted(names)
            if found.get(k) != wanted.get(k)
        ]


def undisturbed(
    name: str, base: Path, folder: Path, run: Callable[[list[str]], tuple[int, float, str]]
) -> Whole:
    """Runs a command twice; `run` returns exit code, CPU seconds, and what was printed."""
    found = []
    for _ in range(2):
        code, seconds, said = run(prepare(name, base, folder))
        assert code == 0, f'{name}: {said}'
        found.append(result(folder, said))
    files = [{k for k in each if not k.startswith(PRINTED)} for each in found]
    assert files[0] == files[1], f'{name}: other files'
    whole = same(*found, seconds)
    losses = [k for k in files[0] if k.endswith('/loss') or 'checkpoints' in k]
    assert all(k in whole.wanted for k in losses), f'{name}: two runs without a signal differ'
    return whole


def same(first: dict[str, Any], second: dict[str, Any], seconds: float) -> Whole:
    """What two undisturbed commands have in common."""
    wanted = {k: v for k, v in first.items() if k in second and second[k] == v}
    return Whole(wanted, frozenset({*first, *second} - {*wanted}), seconds)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far; a busy machine makes moments of the clock say little."""
    fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def wait(process: Any, each: Callable[[float], None] = lambda used: None) -> tuple[int, float]:
    """The exit code of a command, and its CPU seconds; calls `each` with those so far until then.

    Raises:
      TimeoutError: it hangs.
    """
    began = time.monotonic()
    while Path(f'/proc/{process.pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z':
        each(cpu_seconds(process.pid))
        if time.monotonic() - began > HANGS:
            process.kill()
            process.wait()
            raise TimeoutError(f'no end after {HANGS:.0f} seconds')
        time.sleep(0.005)
    used = cpu_seconds(process.pid)
    return process.wait(), used
