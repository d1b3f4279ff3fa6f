r"""A real pretrained decoder, SmolLM2-135M, that reads novels at a window of 512 tokens with a memory.

python -m experiments.smollm2 --path=FILE.gguf --books=BOOKS --output=DIR \
    [--parts=windows,far,inside,grafts,learning,keys,far_keys,squad,practice] [--rows=NAME,NAME] \
    [--tokens=8192] \
    [--squad=FILE.json]

`windows`: ways to see 512 tokens, and all 8,192, without any training.
`far`: the same in a folder of its own, for more --tokens; only if it is named.
`inside`: why gates stay shut.
`grafts`: memories in some layers, as they are put in, and with shut gates.
`learning`: the gates of one of them learn on novels.
`far_keys`: as `keys`, in texts of 64 windows; only if it is named. Choose --rows.
`keys`, `squad`: a text is read once, and questions are asked from the memory of it; `squad` needs the
file of SQuAD.
`practice`: the host learns to tell keys in short texts of other novels, and is asked as in `keys`.
What is finished is in DIR and is not repeated; DIR/smollm2.json and .md have all of it. `--tiny` is for
a toy host: short texts, windows of 16.
"""

import argparse
import sys
from pathlib import Path

from experiments.options import add_seeds, make_parser, some_of
from experiments.smollm2 import inside, practice, questions, report, windows

PARTS = {
    'windows': windows.run,
    'far': windows.run_far,
    'inside': inside.run,
    'grafts': windows.run_grafts,
    'learning': windows.run_learning,
    'keys': questions.run_keys,
    'far_keys': questions.run_far_keys,
    'squad': questions.run_squad,
    'practice': practice.run,
}

USUAL = [part for part in PARTS if part not in ('far', 'far_keys')]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command."""
    parser = make_parser(__doc__)
    parser.add_argument('--path', type=Path, required=True, help='GGUF file or folder of the host')
    parser.add_argument('--books', type=Path, required=True, help='train/ validation/ test/')
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--parts', type=some_of(PARTS), default=USUAL)
    parser.add_argument('--rows', type=lambda text: text.split(','), help='only these')
    parser.add_argument('--tokens', type=int, default=8192, help='read of every test book')
    parser.add_argument('--segments', type=int, default=4, help='that gates are looked at in')
    parser.add_argument('--steps', type=int, default=40, help='of 1,024 tokens')
    parser.add_argument('--squad', type=Path, help='dev-v1.1.json; none = not run')
    parser.add_argument('--documents', type=int, default=4, help='of `keys` and `squad`')
    add_seeds(parser, '1', 'of the order of the novels, and of the texts of `practice`')
    parser.add_argument('--tiny', action='store_true')
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Runs the command."""
    options = parse(arguments)
    for part in options.parts:
        PARTS[part](options)
    print(report.write(options.output))


if __name__ == '__main__':
    main(sys.argv[1:])
