"""Options of experiments: everywhere by the same parsers."""

import argparse
import re
from pathlib import Path

import pytest
from absl import flags

from experiments import options

EXPERIMENTS = Path(options.__file__).parent


def files_with(pattern):
    """Files of experiments, but for the one of the options, that have the pattern."""
    files = [path for path in EXPERIMENTS.rglob('*.py') if path != Path(options.__file__)]
    return [path.name for path in files if re.search(pattern, path.read_text())]


def test_flags_are_what_follows_two_dashes():
    parser = options.make_parser('Two\n    lines.', 'command')
    parser.add_argument('names', nargs='*')
    for given, names, rest in (
        ([], [], []),
        (['a', '--', '--config.b=1', '--', 'c'], ['a'], ['--config.b=1', '--', 'c']),
    ):
        found = options.parse_with_flags(parser, given)
        assert (found.names, found.flags) == (names, rest)
    assert 'usage: command' in parser.format_help() and 'Two\n    lines.' in parser.format_help()


def test_lists_have_commas():
    assert options.whole_numbers('512,4096,8') == [512, 4096, 8]
    for wrong in ('0', '', '-1', 'a', '1,', '1.5'):
        with pytest.raises(argparse.ArgumentTypeError, match='integers above 0'):
            options.whole_numbers(wrong)
    names = options.some_of(('infini', 'linear'))
    assert names('linear') == ['linear'] and names('linear,infini') == ['linear', 'infini']
    for wrong in ('', 'linear,', 'infinity,linear'):
        with pytest.raises(argparse.ArgumentTypeError, match='allowed are infini, linear'):
            names(wrong)
    maybe = options.some_of(('infini', 'linear'), or_none=True)
    assert maybe('') == [] and maybe('linear,') == ['linear']


def test_seeds_are_a_number_or_a_list():
    assert options.seed_numbers('3') == [0, 1, 2] and options.seed_numbers('11,23') == [11, 23]
    assert options.seed_numbers('11,') == [11]
    for wrong in ('0', '', '1,1', '1,01', '-1', 'a', ',', '1,,2'):
        with pytest.raises(argparse.ArgumentTypeError, match='11,23|at least 1'):
            options.seed_numbers(wrong)
    for wrong in ('4294967296,', '99999999999'):
        with pytest.raises(argparse.ArgumentTypeError, match='too large'):
            options.seed_numbers(wrong)


def test_both_kinds_of_commands_take_a_list(capsys):
    parser = argparse.ArgumentParser()
    options.add_seeds(parser, '5')
    assert parser.parse_args(['--seeds=11,23']).seeds == [11, 23]
    assert parser.parse_args([]).seeds == [0, 1, 2, 3, 4]
    assert '3 = 0, 1, 2' in parser.format_help()
    parsed = options._Seeds().parse('11,23')
    assert parsed == [11, 23] == options._Seeds().parse(parsed)
    with pytest.raises(ValueError, match='11,23'):
        options._Seeds().parse('eleven')
    assert isinstance(options._Seeds(), flags.ArgumentParser)


def test_no_command_has_another_parser_of_seeds():
    """A command that only counts seeds cannot repeat what others found: use experiments/options.py."""
    assert files_with(r"--(first[-_])?seeds?'|DEFINE[^)]*'seeds'|range\(options\.seeds\)") == []


def test_no_command_parts_its_flags_itself():
    assert files_with(r"index\('--'\)|RawDescriptionHelpFormatter") == []
