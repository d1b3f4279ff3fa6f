r"""A small host from books, with every memory and without: bits per byte, recall in prose, BLiMP.

python -m experiments.hosts --output=DIR --books=FOLDER [--blimp=FOLDER] [--dialogues=CMU_DOG] \
    [--superglue=FOLDER] [--seeds=3] [MEMORY ...]

1. Trains a GPT-2 of 3 layers of 128 that sees 64 tokens, and exports it: DIR/host, DIR/exported.
   With `--rotary` it is a GPT-NeoX with the same layers, and rotary positions.
2. Fine-tunes the exported folder through `configs/host.py` with every memory at equal budget:
   DIR/books/MEMORY/SEED. `local` is the host without a memory.
3. Scores every one by position in the book, before and after.
4. Fine-tunes those further to tell a key that was given in prose: DIR/passkey/MEMORY/SEED, scored by the
   distance between key and question.
5. Scores host and the first seed of every memory on minimal pairs (`experiments.hosts.blimp`).
6. Fine-tunes the exported folder on conversations about a document (`dialogue.py`) and on tasks of
   SuperGLUE (`superglue.py`), with the memories that these files name: DIR/dialogue, DIR/superglue.
`--parts=books,passkey` leaves the others out. What is finished is in DIR and is not repeated: the same
command resumes, and at the end writes DIR/hosts.md and the figures from all that is there.
"""

import argparse
import sys
from pathlib import Path

from experiments import compare, floors
from experiments.hosts import dialogue, scores, superglue, table
from experiments.hosts.scores import CONFIG, LOCAL, SEGMENT
from experiments.options import (
    add_seeds,
    make_parser,
    parse_with_flags,
    seed_flags,
    some_of,
    whole_numbers,
)

MEMORIES = (
    LOCAL, 'transformer_xl', 'compressive', 'infini', 'infinity_former', 'memorizing', 't2r',
)  # fmt: skip
PARTS = ('books', 'passkey', 'blimp', 'dialogue', 'superglue')
VOCABULARY = 1024
DISTANCES = (50, 200, 800)  # characters, as trained
READ = ('--config.evaluate.max_test_segments=512', '--config.generate.sample_length=0')


def host_flags(options: argparse.Namespace) -> list[str]:
    """Flags of the training of the host; its variants are `host_variants`."""
    steps, width = options.host_steps, options.width
    positions = [] if options.rotary else [f'--config.model.num_positions={SEGMENT}']
    return [
        '--config.data.source=text', f'--config.data.path={options.books}', '--config.data.pieces=16',
        '--config.data.tokenizer.kind=bpe', f'--config.data.tokenizer.size={VOCABULARY}',
        f'--config.model.vocab_size={VOCABULARY}', *positions, f'--config.model.d_model={width}',
        f'--config.model.d_embed={width}',
        f'--config.model.head_dim={width // 4}', f'--config.model.d_feed_forward={4 * width}',
        '--config.model.init_std=0.0', '--config.train.num_lanes=16',
        f'--config.train.num_steps={steps}', f'--config.train.evaluate_every={steps // 2}',
        '--config.evaluate.max_segments=64', *READ,
    ]  # fmt: skip


HOST = f'tiny,memory={LOCAL},host_rate=1,segment={SEGMENT}'


def tuning(steps: int) -> list[str]:
    """Flags of every fine-tuning."""
    return [
        '--config.train.num_lanes=8', '--config.train.segments_per_step=4',
        f'--config.train.num_steps={steps}', f'--config.train.evaluate_every={steps}',
        '--config.train.log_every=10', '--config.evaluate.max_segments=16',
        '--config.generate.sample_length=0',
    ]  # fmt: skip


def book_flags(options: argparse.Namespace) -> list[str]:
    """Flags of the fine-tuning on books."""
    return [
        '--config.data.source=text', f'--config.data.path={options.books}',
        '--config.data.pieces=16', *tuning(options.steps), *READ, *options.flags,
    ]  # fmt: skip


def passkey_flags(options: argparse.Namespace) -> list[str]:
    """Flags of the fine-tuning on keys in prose."""
    task = dict(eval_documents=48, answer_length=1, before=100)
    return [
        f'--config.data.path={options.books}',
        *(f'--config.data.task.{name}={value}' for name, value in task.items()),
        f'--config.data.task.distances={DISTANCES}', '--config.evaluate.num_lanes=16',
        *tuning(options.passkey_steps), *options.flags,
    ]  # fmt: skip


def variants(options: argparse.Namespace, memory: str) -> str:
    """What follows `--config=configs/host.py:` for a memory in the exported host."""
    return f'tiny,path={options.output / "exported"},memory={memory},segment={SEGMENT}'


def host_variants(options: argparse.Namespace) -> str:
    """What follows `--config=configs/host.py:` for the host itself."""
    return HOST + (',position=rotary' if options.rotary else '')


def host(options: argparse.Namespace) -> None:
    """Trains and exports the host, and counts n-grams on what it reads."""
    folder, exported = options.output / 'host', options.output / 'exported'
    flags = [*host_flags(options), *options.flags]
    compare.run(CONFIG, host_variants(options), flags, 0, folder)
    scores.export_plain(folder, exported)
    counted = [
        *seed_flags(0),
        *flags,
        f'--config.data.tokenizer.path={exported / "tokenizer.json"}',
    ]
    floors.measure(CONFIG, host_variants(options), counted, options.output / 'floors')


def books(options: argparse.Namespace, memory: str) -> None:
    """Fine-tunes the host on books with a memory, and scores it by position, before and after."""
    folder = options.output / 'books' / memory
    given = CONFIG, variants(options, memory), book_flags(options)
    for seed, numbers in compare.every_seed(*given, folder, options.seeds):
        print(f'books, {memory}, seed {seed}: {numbers["test"]["bits_per_byte"]:.3f}', flush=True)
    scores.positions(folder, options.seeds)


def passkey(options: argparse.Namespace, memory: str) -> None:
    """Fine-tunes every seed of `books` to tell keys, and scores it by distance."""
    folder, given = options.output / 'passkey' / memory, variants(options, memory)
    for seed in options.seeds:
        begun = options.output / 'books' / memory / str(seed)
        flags = [*passkey_flags(options), f'--config.train.start_from={begun}']
        compare.run(CONFIG, f'{given},passkey', flags, seed, folder / str(seed))
    scores.recall(folder, options.seeds, options.distances, options.documents)


def blimp(options: argparse.Namespace) -> None:
    """Scores the host and the first seed of every memory on minimal pairs."""
    first = str(options.seeds[0])
    folders = [options.output / 'books' / memory / first for memory in options.memories]
    for folder in (options.output / 'host', *folders):
        scores.minimal_pairs(folder, options.blimp, options.pairs)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command."""
    parser = make_parser(__doc__)
    parser.add_argument('memories', nargs='*', metavar='MEMORY')
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--books', type=Path, required=True, help='train/ validation/ test/')
    parser.add_argument('--blimp', type=Path, help='the 67 files of BLiMP; none = not run')
    parser.add_argument('--dialogues', type=Path, help='CMU-DoG; none = not run')
    parser.add_argument('--dialogue_steps', type=int, default=100, help='of 2,016 tokens')
    parser.add_argument('--superglue', type=Path, help='folders of tasks; none = not run')
    parser.add_argument('--superglue_steps', type=int, default=60, help='of 2,048 tokens')
    parser.add_argument('--pairs', type=int, default=50, help='first pairs of a paradigm')
    add_seeds(parser, of='of fine-tuning; the host has one')
    parser.add_argument('--width', type=int, default=128, help='of the host')
    parser.add_argument('--rotary', action='store_true', help='positions of the host')
    parser.add_argument('--host_steps', type=int, default=5000, help='of 2,048 tokens')
    parser.add_argument('--steps', type=int, default=400, help='of 2,048 tokens, on books')
    parser.add_argument('--passkey_steps', type=int, default=600)
    parser.add_argument('--distances', type=whole_numbers, default=[50, 200, 800, 3200])
    parser.add_argument('--documents', type=int, default=48, help='at every distance')
    parser.add_argument('--parts', type=some_of(PARTS), default=list(PARTS))
    options = parse_with_flags(parser, arguments)
    options.output = options.output.resolve()
    options.memories = options.memories or list(MEMORIES)
    return options


def main(arguments: list[str]) -> None:
    """Runs the command."""
    options = parse(arguments)
    host(options)
    for part in ('books', 'passkey'):
        for memory in options.memories if part in options.parts else ():
            {'books': books, 'passkey': passkey}[part](options, memory)
    if options.blimp and 'blimp' in options.parts:
        blimp(options)
    if options.dialogues and 'dialogue' in options.parts:
        dialogue.run(options)
    if options.superglue and 'superglue' in options.parts:
        superglue.run(options)
    print(table.write(options.output))


if __name__ == '__main__':
    main(sys.argv[1:])
