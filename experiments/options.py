"""Options of all experiments: seeds, lists with commas, and flags of the config after `--`."""

import argparse
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import flags

from longmem_jax.config.checks import LARGEST_SEED

MOST = 10_000  # seeds of a number of seeds
HELP = 'how many (3 = 0, 1, 2), or which: 11,23; one seed is 11,'


def make_parser(about: str | None, name: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help shows `about`, the docstring of a command, as it is written."""
    shape = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(name, description=about, formatter_class=shape)


def parse_with_flags(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
    """The options before `--`; what is after it becomes `flags`."""
    cut = given.index('--') if '--' in given else len(given)
    options = parser.parse_args(given[:cut])
    options.flags = list(given[cut + 1 :])
    return options


def whole_numbers(text: str) -> list[int]:
    """Numbers of a list: '512,4096'.

    Raises:
      ArgumentTypeError: one is no number above 0.
    """
    items = text.split(',')
    if not all(item.isdecimal() and int(item) for item in items):
        raise argparse.ArgumentTypeError(f'{text!r}: must be integers above 0, such as 512,4096')
    return [int(item) for item in items]


def some_of(known: Collection[str], or_none: bool = False) -> Callable[[str], list[str]]:
    """A parser of lists of names of `known`, such as 'infini,linear'; `or_none`: may be empty."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(',') if name or not or_none]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f'{unknown[0]!r}: allowed are {", ".join(known)}')
        return names

    return parse


def seed_numbers(text: str) -> list[int]:
    """Seeds: '3' are 0, 1 and 2; '11,23' are these, and '11,' is one.

    Raises:
      ArgumentTypeError: neither a number above 0 nor different seeds.
    """
    items = text.removesuffix(',').split(',')
    listed = ',' in text
    if not all(item.isdecimal() for item in items) or len({*map(int, items)}) < len(items):
        raise argparse.ArgumentTypeError(
            f'{text!r}: must be a number of seeds, such as 3, or different seeds, such as 11,23'
        )
    if not listed and not int(text):
        raise argparse.ArgumentTypeError(f'{text!r}: must be at least 1')
    if (most := max(map(int, items))) > (LARGEST_SEED if listed else MOST):
        words = f'seeds are at most {LARGEST_SEED}' if listed else f'at most {MOST} seeds'
        raise argparse.ArgumentTypeError(f'{text!r}: {most} is too large; {words}')
    return [int(item) for item in items] if listed else list(range(int(text)))


def add_seeds(parser: argparse.ArgumentParser, default: str = '3', of: str = '') -> None:
    """Adds `--seeds=` to a command; `of` says of what."""
    words = f'{of}: {HELP}' if of else HELP
    parser.add_argument('--seeds', type=seed_numbers, default=default, help=words)


class _Seeds(flags.ArgumentParser):
    def parse(self, argument: str | list[int]) -> list[int]:
        if isinstance(argument, list):
            return argument
        try:
            return seed_numbers(argument)
        except argparse.ArgumentTypeError as error:
            raise ValueError(str(error)) from None


def define_seeds() -> flags.FlagHolder[Any]:
    """Defines `--seeds=` for a command with flags of absl."""
    return flags.DEFINE(_Seeds(), 'seeds', '3', HELP[0].upper() + HELP[1:] + '.')


def seed_flags(seed: int) -> list[str]:
    """Flags of `longmem_jax.main` for a seed, of the parameters and of the data."""
    return [f'--config.train.seed={seed}', f'--config.data.seed={seed}']
