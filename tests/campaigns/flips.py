"""Changes one byte of a file of a run, reads the file as its mode does, and says what was noticed.

All in one process, with nothing compiled twice; if it dies, `reliability.py` starts another.
"""

import contextlib
import dataclasses
import io
import json
import os
import random
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_collections
import numpy as np

from longmem_jax.agents import commands as reinforcement
from longmem_jax.agents.build import Built
from longmem_jax.config import checks, saved
from longmem_jax.config.saved import saved_config
from longmem_jax.config.sections import add
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation import memory_file
from longmem_jax.generation.reader import fresh_state
from longmem_jax.hosts import hosts
from longmem_jax.lifelong import commands as lifelong
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.writers import Writer, read_metrics
from longmem_jax.retrieval import spalm
from longmem_jax.retrieval.spalm_keys import open_keys
from longmem_jax.retrieval.spalm_lists import look_up
from tests.campaigns.runs import digest

# What became of a changed byte.
SAID, SAME, SILENT, TRACEBACK, DIED = 'said', 'same', 'silent', 'traceback', 'died'
GATE = ('about.json', 'parameters.safetensors')
DECAYED = 'datastore, decayed, verify=True'


def of(workdir: Path) -> Experiment:
    """A run as `--workdir=WORKDIR` opens it."""
    config = saved_config(workdir)
    checks.require_runnable(config, 1)
    mesh = sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1])
    return Experiment(config, workdir, mesh)


class Readers:
    """How every kind of file is read; a reader returns a text that says what it has read.

    Attributes:
      folder: a copy of the runs of `runs.make`, in which bytes change.
    """

    def __init__(self, folder: Path):
        """Compiles nothing yet."""
        self.folder = folder
        self._lm, self._opened, self._expected = of(folder / 'lm'), {}, {}
        config = self._lm.config.copy_and_resolve_references()
        add(config, 'retrieval')
        config.retrieval.verify = True
        self._verifies = dataclasses.replace(self._lm, config=config)

    def kinds(self) -> dict[str, tuple[Callable[[], str], list[Path], bool]]:
        """By kind of file: its reader, its files, and whether the reader writes to the run, too."""
        lm, folder = self.folder / 'lm', self.folder

        def files(path: Path) -> list[Path]:
            return sorted(p for p in path.rglob('*') if p.is_file() and p.name != 'verified.json')

        return {
            'checkpoints, to train on': (self.resumed, files(lm / 'checkpoints'), True),
            'checkpoints, to evaluate': (self.parameters, files(lm / 'checkpoints'), False),
            'metrics.jsonl': (self.metrics, [lm / 'metrics.jsonl'], True),
            'config.json': (self.config, [lm / 'config.json'], False),
            'tokenizer': (self.tokenizer, sorted(lm.glob('tokenizer.*')), False),
            'tokenized data': (self.tokens, files(folder / 'tokens/train'), False),
            'texts of training': (self.texts, files(folder / 'texts/train'), True),
            'datastore': (self.store, files(folder / 'store'), False),
            DECAYED: (self.verified, files(folder / 'store'), False),
            'gate of SPALM': (self.gate, [lm / 'spalm' / name for name in GATE], False),
            'lists of neighbours': (self.lists, files(lm / 'spalm_neighbours'), False),
            'memory of a text': (self.book, [folder / 'book'], False),
            'lifelong learner': (self.learner, files(folder / 'lifelong/checkpoints'), False),
            'agent': (self.agent, files(folder / 'agent/checkpoints'), False),
            'Hugging Face folder': (self.host, files(folder / 'host'), False),
        }

    def expected(self, kind: str, reader: Callable[[], str]) -> tuple[str, str]:
        """What a reader returns and says where nothing was changed."""
        if kind not in self._expected:
            read(reader)  # the first time may say more
            result, said, trace = read(reader)
            assert result and not trace, said + trace
            self._expected[kind] = result, said
        return self._expected[kind]

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """What is not read from the changed file is made once."""
        if name not in self._opened:
            self._opened[name] = make()
        return self._opened[name]

    def resumed(self) -> str:
        corpus = self._once('train', lambda: self._lm.corpus('train'))
        saver = self._lm.checkpointer(print, self._lm.going_on(corpus))
        try:
            state, step = saver.restore(self._lm.abstract_state)
        finally:
            saver.close()
        return f'{step} {digest(state)}'

    def parameters(self) -> str:
        params, step = self._lm.restore_parameters()
        return f'{step} {digest(params)}'

    def metrics(self) -> str:
        path = self.folder / 'lm/metrics.jsonl'
        with Writer(path.parent) as writer:
            said = writer.resume(self._lm.config.train.num_steps, again=True)
        print(said or '', end='')
        return json.dumps(read_metrics(path))

    def config(self) -> str:
        experiment = of(self.folder / 'lm')
        self._once('train', lambda: self._lm.corpus('train'))
        _, step = experiment.restore_parameters()
        return f'{step} {experiment.config.to_json(sort_keys=True)}'

    def tokenizer(self) -> str:
        experiment = of(self.folder / 'lm')
        _, step = experiment.restore_parameters()
        tokens = experiment.tokenizer.encode(b'alpha beta gamma delta \xff')
        return f'{step} {tokens.tolist()}'

    def texts(self) -> str:
        experiment = of(self.folder / 'lm')
        corpus = experiment.corpus('train')
        saver = experiment.checkpointer(print, experiment.going_on(corpus))
        try:
            _, step = saver.restore(experiment.abstract_state)
        finally:
            saver.close()
        return f'{step} {digest([corpus[i].tokens for i in range(len(corpus))])}'

    def tokens(self) -> str:
        config = self._lm.config.copy_and_resolve_references()
        config.data.tokenized = str(self.folder / 'tokens')
        corpus = dataclasses.replace(self._lm, config=config).corpus('train')
        documents = [corpus[index] for index in range(len(corpus))]
        return digest([corpus.lengths(), [(each.tokens, each.num_bytes) for each in documents]])

    def _model(self) -> Any:
        return self._once('parameters', lambda: self._lm.restore_parameters()[0])

    def store(self) -> str:
        return self._store(self._lm)

    def verified(self) -> str:
        return self._store(self._verifies)

    def _store(self, experiment: Experiment) -> str:
        keys = open_keys(experiment)
        numbers = np.arange(len(keys.store))
        rows = [keys.store.rows(name, numbers) for name in ('keys', 'values', 'contexts')]
        return digest([*rows, keys.store.documents])

    def gate(self) -> str:
        params, gate = spalm.load(self._lm, self._once('keys', lambda: open_keys(self._lm)))
        return digest([params, gate])

    def lists(self) -> str:
        keys = self._once('keys', lambda: open_keys(self._lm))
        found = look_up(self._lm.workdir, keys, 'train', self._lm.config.retrieval.spalm.k, print)
        return digest(np.asarray(found.numbers))

    def book(self) -> str:
        params, model = self._model(), self._lm.evaluation_model
        abstract = jax.eval_shape(lambda params: fresh_state(model, params, 1), params)
        settings = model.config.to_dict() | {'segment_length': model.segment_length}
        state, pending = memory_file.load(str(self.folder / 'book'), abstract, settings, params)
        return digest([state, pending])

    def learner(self) -> str:
        experiment = self._once('lifelong', lambda: of(self.folder / 'lifelong'))
        _, state, step = lifelong.learned(experiment, Progress(0, log_every=0))
        return f'{step} {digest(state)}'

    def agent(self) -> str:
        experiment = self._once('agent', lambda: of(self.folder / 'agent'))
        built = self._once('built', lambda: Built(experiment.config, experiment.mesh))
        state, step = reinforcement.restored(experiment, built, Progress(0, log_every=0))
        return f'{step} {digest(state)}'

    def host(self) -> str:
        host = hosts.find(str(self.folder / 'host'))
        return digest(hosts.load(host, hosts.make(host.model, 8), report=print))


def read(reader: Callable[[], str]) -> tuple[str, str, str]:
    """What a reader returned, what it said, and its traceback, if it failed otherwise."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            result = reader()
    except UsageError as error:
        return '', f'{out.getvalue()}{error}', ''
    except Exception:
        return '', out.getvalue(), traceback.format_exc()
    return result, out.getvalue(), ''


def flip(base: Path, readers: Readers, draw: random.Random) -> dict[str, Any]:
    """Changes a byte, reads, and puts everything back; `fate` is one of the words above.

    Args:
      base: the runs as they were.
      readers: of a copy.
      draw: random numbers.
    """
    folder, kinds = readers.folder, readers.kinds()
    kind = draw.choice(list(kinds))
    reader, files, writes = kinds[kind]
    path = draw.choice([p for p in files if p.stat().st_size])
    content, times = path.read_bytes(), path.stat()
    place, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
    wanted, before = readers.expected(kind, reader)
    about = dict(kind=kind, file=str(path.relative_to(folder)), place=place, bit=bit)
    print(json.dumps(about | {'fate': DIED}), flush=True)  # unless the next line comes
    changed = bytearray(content)
    changed[place] ^= bit
    path.write_bytes(changed)
    if kind == DECAYED:  # a disk that decays changes no times
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    found, said, trace = read(reader)
    if trace:
        fate = TRACEBACK
    elif not found or said != before:
        fate = SAID
    else:
        fate = SAME if found == wanted else SILENT
    if writes:
        restore(base, folder, path.relative_to(folder).parts[0])
    elif path.exists():
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return about | {'fate': fate, 'said': (trace or said)[-600:]}


def restore(base: Path, folder: Path, name: str) -> None:
    """Puts back a run, or one of the other things in `base`."""
    source, target = base / name, folder / name
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def main(base: str, folder: str, first: str, count: str, seed: str) -> None:
    """Prints two lines of JSON for every change, the first before it is read."""
    whole = f'{folder}-whole'
    for path in (whole, folder):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, whole)
    for name in ('lm', 'lifelong', 'agent'):  # their configurations name the folder
        path = Path(whole) / name / 'config.json'
        content = json.loads(path.read_text().replace(base, folder))
        del content[saved.CHECKSUM]
        saved.write(ml_collections.ConfigDict(content), path)
    shutil.copytree(whole, folder)
    readers = Readers(Path(folder))
    for number in range(int(first), int(first) + int(count)):
        line = flip(Path(whole), readers, random.Random(f'{seed} {number}'))
        print(json.dumps(line), flush=True)


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: what became of the changes, by kind of file."""
    fates = (SAID, SAME, SILENT, TRACEBACK, DIED)
    rows = [
        '| file | bytes changed | message | no effect | other values read, no message | traceback '
        '| died |',
        '|---|---|---|---|---|---|---|',
    ]
    for kind in (*sorted({line['kind'] for line in lines}), 'all'):
        own = [line['fate'] for line in lines if kind in (line['kind'], 'all')]
        rows.append(f'| {kind} | {len(own)} | {" | ".join(str(own.count(f)) for f in fates)} |')
    return '\n'.join(rows)


if __name__ == '__main__':
    main(*sys.argv[1:])
