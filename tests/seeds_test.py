"""`--seeds=` of experiments: a number of seeds or a list, everywhere by the same parser."""

import argparse
import re
from pathlib import Path

import pytest
from absl import flags

from experiments import seeds

EXPERIMENTS = Path(seeds.__file__).parent


def test_seeds_are_a_number_or_a_list():
    assert seeds.seed_numbers('3') == [0, 1, 2] and seeds.seed_numbers('11,23') == [11, 23]
    assert seeds.seed_numbers('11,') == [11]
    for wrong in ('0', '', '1,1', '1,01', '-1', 'a', ',', '1,,2'):
        with pytest.raises(argparse.ArgumentTypeError, match='11,23|at least 1'):
            seeds.seed_numbers(wrong)
    for wrong in ('4294967296,', '99999999999'):
        with pytest.raises(argparse.ArgumentTypeError, match='too large'):
            seeds.seed_numbers(wrong)


def test_both_kinds_of_commands_take_a_list(capsys):
    parser = argparse.ArgumentParser()
    seeds.add_seeds(parser, '5')
    assert parser.parse_args(['--seeds=11,23']).seeds == [11, 23]
    assert parser.parse_args([]).seeds == [0, 1, 2, 3, 4]
    assert '3 = 0, 1, 2' in parser.format_help()
    parsed = seeds._Seeds().parse('11,23')
    assert parsed == [11, 23] == seeds._Seeds().parse(parsed)
    with pytest.raises(ValueError, match='11,23'):
        seeds._Seeds().parse('eleven')
    assert isinstance(seeds._Seeds(), flags.ArgumentParser)


def test_no_command_has_another_parser_of_seeds():
    """A command that only counts seeds cannot repeat what others found: use experiments/seeds.py."""
    own = [
        path.name
        for path in EXPERIMENTS.rglob('*.py')
        if path.name != 'seeds.py'
        and re.search(
            r"--(first[-_])?seeds?'|DEFINE[^)]*'seeds'|range\(options\.seeds\)", path.read_text()
        )
    ]
    assert own == []
