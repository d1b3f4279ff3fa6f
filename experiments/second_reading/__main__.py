r"""The second reading: real text followed by itself, and what each memory saves on the second copy.

python -m experiments.second_reading --output=DIR [--rows=infini,memorizing] [--seeds=5] \
    [--lengths=128,256,1024,4096,16384,65536,262144] [-- --config.FIELD=VALUE ...]

Trains `configs/second_reading.py:tiny` on pieces of at most 256 bytes with every memory and seed, and
tests it on texts that were in no training, up to 256 kB. DIR/ROW/SEED.json has the bits per byte of the
first copy, which are those of a memory reset between the copies, and of the second one; beside it stand
the parameters. What is there is not done again, so the command can be stopped and repeated, and another
length or the table of everything is one more, short run. Every call writes DIR/second_reading.json, .md
and .png.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
from flax.serialization import msgpack_restore, msgpack_serialize

from experiments import provenance
from experiments.second_reading import floors, report, rows
from experiments.seeds import add_seeds
from experiments.short_trainings import Trainer
from experiments.speed.bench import state_bytes
from longmem_jax import files
from longmem_jax.data import load
from longmem_jax.data.corpus import Corpus
from longmem_jax.data.sets import second_reading
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator

LENGTHS = (128, 256, 1024, 4096, 16_384, 65_536, 262_144)
TESTED = 1 << 17  # bytes of a length, in as many documents as that takes, within these numbers
FEWEST, MOST = 2, 64
LEAST = 0.02  # bits per byte; longer texts are not tested when two lengths in a row saved less
FLOORS = 'floors'


def documents(length: int) -> int:
    """How many pieces of a length are tested."""
    return min(max(TESTED // length, FEWEST), MOST)


def tested(config: Any, length: int, copies: int) -> Any:
    """The settings of the data that are tested."""
    data = config.copy_and_resolve_references().data
    data.task.update(lengths=(length,), copies=copies, eval_documents=documents(length))
    return data


def _is_over(bits: dict[str, dict[str, float]]) -> bool:
    """Whether the longest two texts have saved less than `LEAST`."""
    longest = sorted(bits, key=int)[-2:]
    return len(longest) == 2 and all(bits[n]['first'] - bits[n]['second'] < LEAST for n in longest)


class Runs:
    """Trains and tests the seeds of a row; what is finished is kept."""

    def __init__(self, name: str, config: Any, folder: Path):
        """Compiles nothing before it is needed."""
        self._name, self._folder, self._trainer = name, folder, Trainer(config)
        self._evaluators: dict[int, Evaluator] = {}  # by lanes

    def run(self, seed: int, lengths: list[int], flags: list[str]) -> None:
        """Adds what a seed's cell lacks."""
        path = self._folder / f'{seed}.json'
        cell = json.loads(path.read_text()) if path.exists() else {'flags': flags}
        self._require_same(path, cell['flags'], flags)
        bits = cell.setdefault('bits', {})
        missing = [length for length in sorted(lengths) if str(length) not in bits]
        if not missing or _is_over(bits):
            return
        params = self._trained(seed, flags)
        model = self._trainer.shared.evaluation_model
        state = jax.eval_shape(
            lambda params: model.apply({'params': params}, 1, method='initial_state'), params
        )
        cell |= {
            'parameters': sum(leaf.size for leaf in jax.tree.leaves(params)),
            'state_bytes': state_bytes(state),
        }
        for length in missing:
            began = time.monotonic()
            found = self._test(seed, params, length)
            bits[str(length)] = found
            said = f'{found["first"] - found["second"]:.3f} bits per byte saved'
            seconds = time.monotonic() - began
            print(
                f'{self._name}, seed {seed}, {length:,} bytes: {said}, {seconds:.0f} s', flush=True
            )
            cell.pop('run', None)
            provenance.save(path, cell, [seed])
            if _is_over(bits):
                return

    def _require_same(self, path: Path, before: list[str], flags: list[str]) -> None:
        """Raises `UsageError` if a file is of a training with other flags."""
        if list(before) != flags:
            raise UsageError(
                f'{path}: is of {" ".join(before) or "no flags"}, not of {" ".join(flags) or "none"}; '
                'choose another --output, or delete it.'
            )

    def _trained(self, seed: int, flags: list[str]) -> Any:
        """The parameters of a seed, from its file or from a training."""
        path = self._folder / f'{seed}.msgpack'
        if path.exists():
            found = msgpack_restore(path.read_bytes())
            self._require_same(path, found['flags'], flags)
            return found['params']
        began = time.monotonic()
        trained = self._trainer.train(seed, None, 100)
        last = trained.lines[-1]
        print(
            f'{self._name}, seed {seed}: {trained.steps} steps, {time.monotonic() - began:.0f} s, '
            f'loss {last["loss"]:.3f}',
            flush=True,
        )
        params = jax.device_get(trained.params)
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.whole_file(path) as partial:
            partial.write_bytes(msgpack_serialize({'flags': flags, 'params': params}))
        return params

    def _test(self, seed: int, params: Any, length: int) -> dict[str, float]:
        """Bits per byte of both copies at a length."""
        experiment = self._trainer.seeded(seed)
        found: dict[str, float] = {'documents': documents(length)}
        for copies, name in ((1, 'first'), (2, 'second')):
            data = tested(experiment.config, length, copies)
            corpus = load.load(data, 'test', experiment.tokenizer)
            lanes = min(documents(length), experiment.config.evaluate.num_lanes)
            if lanes not in self._evaluators:
                config = experiment.config.copy_and_resolve_references()
                config.evaluate.num_lanes = lanes
                model, mesh = experiment.evaluation_model, experiment.mesh
                self._evaluators[lanes] = Evaluator(model, mesh, config)
            result, _ = self._evaluators[lanes].evaluate(params, corpus, 'test')
            found[name] = result.bits_per_byte
        return found


def floor_cells(config: Any, output: Path, lengths: list[int]) -> None:
    """Writes what xz and n-grams with a cache save, for the documents of seed 0."""
    path = output / FLOORS / '0.json'
    cell = json.loads(path.read_text()) if path.exists() else {}
    missing = [length for length in lengths if str(length) not in cell.get('xz', {})]
    if not missing:
        return
    tokenizer = load.make_tokenizer(config.data, output)
    train = Corpus(second_reading.texts(config.data, 'train'), tokenizer)
    ngrams = floors.trained_ngrams(train)
    for length in missing:
        corpus = load.load(tested(config, length, 2), 'test', tokenizer)
        pieces = [corpus[index] for index in range(len(corpus))]
        texts = [tokenizer.decode(piece.tokens[: len(piece.tokens) // 2]) for piece in pieces]
        found = {
            'xz': floors.xz(texts),
            'n-grams with a cache': floors.cached_ngrams(ngrams, pieces, tokenizer.begin),
        }
        for name, (first, second) in found.items():
            cell.setdefault(name, {})[str(length)] = {'first': first, 'second': second}
    cell.pop('run', None)
    path.parent.mkdir(exist_ok=True)
    provenance.save(path, cell, [0])


def parse(given: list[str]) -> argparse.Namespace:
    """The options; `flags` are those after `--`."""
    cut = given.index('--') if '--' in given else len(given)
    parser = argparse.ArgumentParser(
        'experiments.second_reading',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument(
        '--rows', type=lambda text: text.split(','), default=list(rows.SHOWN), metavar='ROW,ROW'
    )
    add_seeds(parser, default='5')
    parser.add_argument(
        '--lengths',
        type=lambda text: [int(item) for item in text.split(',')],
        default=list(LENGTHS),
        help='bytes of a copy',
    )
    options = parser.parse_args(given[:cut])
    for name in options.rows:
        if name not in rows.names():
            parser.error(f'--rows: {name!r}: allowed are {", ".join(rows.names())}')
    options.flags = given[cut + 1 :]
    return options


def main(given: list[str]) -> None:
    """Runs the command."""
    options = parse(given)
    options.output.mkdir(parents=True, exist_ok=True)
    baseline = rows.config_of(rows.BASELINE, options.flags)
    load.make_tokenizer(baseline.data, options.output)
    kind, size = baseline.data.tokenizer.kind, baseline.data.tokenizer.size
    path = baseline.data.tokenizer.path or options.output / f'tokenizer.{kind}.{size}.json'
    floor_cells(baseline, options.output, options.lengths)
    for name in options.rows:
        flags = [*options.flags, f'--config.data.tokenizer.path={path}']
        runs = Runs(name, rows.config_of(name, flags), options.output / name)
        for seed in options.seeds:
            runs.run(seed, options.lengths, [*rows.row(name).flags, *options.flags])
        jax.clear_caches()
    print(report.write(options.output))


if __name__ == '__main__':
    main(sys.argv[1:])
