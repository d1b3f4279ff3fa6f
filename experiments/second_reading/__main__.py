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
import sys
import time
from pathlib import Path
from typing import Any

import jax
from flax.serialization import msgpack_restore, msgpack_serialize

from experiments import provenance
from experiments.options import add_seeds, make_parser, parse_with_flags, some_of, whole_numbers
from experiments.second_reading import floors, report, rows
from experiments.short_trainings import Trainer
from experiments.speed.bench import bytes_per_lane
from longmem_jax import files
from longmem_jax.config import overrides
from longmem_jax.data import load
from longmem_jax.data.corpus import Corpus
from longmem_jax.data.sets import second_reading
from longmem_jax.errors import UsageError

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


def _is_over(bits: dict[str, dict[str, float]], length: int) -> bool:
    """Whether the longest two texts below a length have saved less than `LEAST`."""
    longest = sorted((n for n in bits if int(n) < length), key=int)[-2:]
    return len(longest) == 2 and all(bits[n]['first'] - bits[n]['second'] < LEAST for n in longest)


class Runs:
    """Trains and tests the seeds of a row; what is finished is kept."""

    def __init__(self, name: str, config: Any, folder: Path):
        """Compiles nothing before it is needed."""
        self._name, self._folder, self._trainer = name, folder, Trainer(config)

    def run(self, seed: int, lengths: list[int], flags: list[str]) -> None:
        """Adds what a seed's cell lacks."""
        path = self._folder / f'{seed}.json'
        cell = provenance.read(path, 'flags') if path.exists() else {'flags': flags}
        provenance.require_same(path, cell['flags'], flags)
        bits = cell.setdefault('bits', {})
        missing = [length for length in sorted(lengths) if str(length) not in bits]
        if all(_is_over(bits, length) for length in missing):
            return
        params = self._trained(seed, flags)
        cell |= {
            'parameters': sum(leaf.size for leaf in jax.tree.leaves(params)),
            'state_bytes': bytes_per_lane(self._trainer.shared.evaluation_model, params),
        }
        for length in missing:
            if _is_over(bits, length):
                continue
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

    def _trained(self, seed: int, flags: list[str]) -> Any:
        """The parameters of a seed, from its file or from a training."""
        path = self._folder / f'{seed}.msgpack'
        if path.exists():
            try:
                found = msgpack_restore(path.read_bytes())
                before, params = found['flags'], found['params']
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(f'{path}: is damaged ({error}); delete it.') from None
            provenance.require_same(path, before, flags)
            return params
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
            result, _ = self._trainer.evaluator_of(lanes).evaluate(params, corpus, 'test')
            found[name] = result.bits_per_byte
        return found


def floor_cells(config: Any, output: Path, lengths: list[int], flags: list[str]) -> None:
    """Writes what xz and n-grams with a cache save, for the documents of seed 0.

    `flags`: of the data, which `config` has.
    """
    path = output / FLOORS / '0.json'
    cell = provenance.read(path) if path.exists() else {'flags': flags}
    provenance.require_same(path, cell.get('flags', []), flags)
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
    provenance.save(path, cell, [0])


def of_data(flags: list[str]) -> list[str]:
    """The flags that all rows and the floors have in common, as `--config.data.FIELD=VALUE`."""
    _, changes = overrides.split_arguments(flags)
    return [f'--config.{path}={text}' for path, text in changes if path.startswith('data.')]


def require_same(output: Path, flags: list[str]) -> None:
    """Raises `UsageError` if a number of a folder was trained with other flags."""
    for name, cells in report.collect(output).items():
        if name != FLOORS:
            for seed, cell in cells.items():
                wanted = [*rows.row(name).flags, *flags]
                provenance.require_same(f'{output}: {name}, seed {seed}', cell['flags'], wanted)


def parse(given: list[str]) -> argparse.Namespace:
    """The options; `flags` are those after `--`."""
    parser = make_parser(__doc__, 'experiments.second_reading')
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument(
        '--rows', type=some_of(rows.names()), default=list(rows.SHOWN), metavar='ROW,ROW'
    )
    add_seeds(parser, default='5')
    parser.add_argument(
        '--lengths', type=whole_numbers, default=list(LENGTHS), help='bytes of a copy: 128,1024'
    )
    options = parse_with_flags(parser, given)
    options.lengths = sorted({*options.lengths})
    return options


def main(given: list[str]) -> None:
    """Runs the command."""
    options = parse(given)
    options.output.mkdir(parents=True, exist_ok=True)
    configs = {name: rows.config_of(name, options.flags) for name in options.rows}
    require_same(options.output, options.flags)
    data_flags = of_data(options.flags)
    baseline = rows.config_of(rows.BASELINE, data_flags)
    load.make_tokenizer(baseline.data, options.output)
    kind, size = baseline.data.tokenizer.kind, baseline.data.tokenizer.size
    path = baseline.data.tokenizer.path or options.output / f'tokenizer.{kind}.{size}.json'
    floor_cells(baseline, options.output, options.lengths, data_flags)
    for name, config in configs.items():
        config.data.tokenizer.path = str(path)
        runs = Runs(name, config, options.output / name)
        for seed in options.seeds:
            runs.run(seed, options.lengths, [*rows.row(name).flags, *options.flags])
        jax.clear_caches()
    print(report.write(options.output))


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f'UsageError: {error}')
