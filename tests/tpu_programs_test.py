"""What is read from compiled programs, and what is worse than recorded."""

import dataclasses
import importlib.util
import math
import os
import subprocess
import sys
import types

import pytest

from configs import memorizing_pg19, pg19
from experiments import program_bytes, tpu_programs
from experiments.tpu_programs import ROWS, Needs
from longmem_jax.config import checks

PROGRAM = """
%fused (a: f32[4,8], b: f32[8,2]) -> f32[4,2] {
  %a = f32[4,8]{1,0:T(8,128)} parameter(0)
  %b = f32[8,2]{1,0} parameter(1)
  %c.1 = bf16[8,2]{1,0} convert(%b)
  ROOT %d = f32[4,2] convolution(%a, %b), dim_labels=bf_io->bf, metadata={op_name="s/closed_call/x/dot"}
  %e = f32[4,2]{1,0} convolution(%a, %c.1), dim_labels=bf_io->bf, metadata={op_name="jit(s)/y/dot"}
  %f = f32[4,2]{1,0} dot(%a, %b), operand_precision={highest,highest}, metadata={op_name="jit(s)/z/dot"}
}
  %r = bf16[10,3]{1,0:T(8,128)(2,1)S(1)} all-reduce(%q), replica_groups={}, to_apply=%add
  %s = (f32[2]{0}, /*index=1*/s32[]{:T(128)}) all-reduce-start(%q, %p), to_apply=%add
  %t = (f32[2]{0}, s32[]) all-reduce-done(%s)
%turn.1 (p: f32[5]) -> f32[5] {
  ROOT %u = f32[5]{0} all-reduce(%p), to_apply=%add
}
ENTRY %main (v: f32[5]) -> f32[5] {
  %w = f32[5]{0} while(%v), condition=%more, body=%turn.1
}
"""
NEEDS = Needs(
    arguments=1.0, temporaries=2.0, capacity=16.0, flops=1e12, gigabytes=30.0, collectives=100.0,
    wide_products=('x/dot',), cycles=20.0,
)  # fmt: skip


def test_collectives_and_products_of_a_program():
    assert program_bytes.collectives_of(PROGRAM, turns=3) == 60 + 8 + 4 + 3 * 20, 'loops: per turn'
    assert program_bytes.wide_products_of(PROGRAM) == ('x/dot',)


def test_a_program_that_cannot_be_read_has_unknown_collectives(capsys):
    def as_text():
        raise RuntimeError('RET_CHECK failure')

    assert tpu_programs.text_of(types.SimpleNamespace(as_text=as_text)) == ''
    assert 'collectives are unknown: RET_CHECK failure' in capsys.readouterr().out
    unknown = dataclasses.replace(NEEDS, collectives=None)
    assert not tpu_programs.check(unknown, NEEDS) and not tpu_programs.check(NEEDS, unknown)
    assert '| unknown |' in tpu_programs.shown({'a (v5p:2x2x2)': unknown})


MOVES = """
%inner (a: f32[9]) -> f32[9] {
  %a = f32[9]{0} negate(%p)
}
%turn.1 (p: f32[5]) -> f32[5] {
  ROOT %u = f32[5]{0} fusion(%p), calls=%inner, metadata={op_name="block_0/attention/fused_forward/call"}
}
ENTRY %main (v: f32[5]) -> f32[5] {
  %v = f32[5]{0:T(128)} parameter(0)
  %f = bf16[6]{0:T(128)(2,1)S(1)} fusion(%v), calls=%inner, metadata={op_name="block_0/feed_forward/dot"}
  %b = f32[5]{0} bitcast(%v)
  %c = (f32[5]{0:T(128)S(1)}, f32[5]{0:T(128)}, u32[]{:S(2)}) copy-start(%b)
  %d = f32[5]{0:T(128)S(1)} copy-done(%c)
  %s = ((f32[5]{0:T(128)}), f32[2]{0:T(128)S(1)}, s32[]{:S(2)}) slice-start(%v), slice={[0:2]}
  %w = f32[5]{0} while(%v), condition=%more, body=%turn.1
}
"""


def test_bytes_of_a_program_are_those_of_the_memory_of_the_chip():
    """Not of the fast memory, nor of what is inside of an operation; of a loop's body once."""
    assert program_bytes.moved(MOVES) == {
        'copies to and from fast memory': (20 + 2 * 4 + 4) / 1e9,  # and a counter
        'attention, kernels': 20 / 1e9,
        'feed-forward layers': 20 / 1e9,
    }


def test_what_is_worse_than_recorded_is_a_problem():
    assert not tpu_programs.check(NEEDS, NEEDS)
    for change, problem in (
        (dict(gigabytes=31.0), ''),
        (dict(gigabytes=32.0), 'gigabytes: 32, recorded are 30'),
        (dict(collectives=106.0), 'collectives: 106, recorded are 100'),
        (dict(temporaries=2.2), 'temporaries: 2.2, recorded are 2'),
        (dict(cycles=22.0), 'cycles: 22, recorded are 20'),
        (dict(capacity=2.5), 'does not fit: 3.0 GiB'),
        (dict(wide_products=('x/dot', 'y/dot')), 'float32 product: y/dot'),
    ):
        found = tpu_programs.check(dataclasses.replace(NEEDS, **change), NEEDS)
        assert found == [problem] * bool(problem)


def test_two_layers_have_every_kind_of_attention():
    config = tpu_programs.two_layers(memorizing_pg19.get_config())
    assert config.model.attention == ('normalized_xl', 'memorizing')
    assert tpu_programs.two_layers(pg19.get_config()).model.attention == ('transformer_xl',) * 2


def test_the_recorded_table_is_that_of_the_rows():
    labels = {label.rpartition(' (')[0] for label in tpu_programs.read_table(tpu_programs.TABLE)}
    names = {label.removesuffix(', all layers') for label in labels}
    assert names <= set(ROWS), 'rows that nothing compiles: remove them from the table'


def test_what_is_recorded_can_be_compiled_by_its_name():
    assert tpu_programs.parsed('pg19, fused') == ('pg19, fused', '', False)
    for label in tpu_programs.read_table(tpu_programs.TABLE):
        name, topology, all_layers = tpu_programs.parsed(label)
        assert tpu_programs.label_of(name, topology, all_layers) == label
    with pytest.raises(ValueError, match='pg20: no row of this name; allowed are pg19;'):
        tpu_programs.parsed('pg20 (v5e:4x4)')


def test_rows_that_nothing_is_recorded_of_are_named():
    recorded = {tpu_programs.label_of(name, row.topology) for name, row in ROWS.items()}
    assert tpu_programs.not_recorded(dict.fromkeys(recorded)) == []
    assert tpu_programs.not_recorded({'pg19, all layers (v5e:4x4)': NEEDS}) == list(ROWS)


def test_rows_are_configured():
    for name, row in ROWS.items():
        config = tpu_programs.configured(name)
        chips = math.prod(map(int, row.topology.partition(':')[2].split('x')))
        assert not checks.find_problems(config, chips), f'{name}: give the row another topology'
        assert config.model.num_layers == 2
        if row.encoder:
            section, field = row.encoder.split('.')
            assert config.model[section][field] == 2
        assert config.model.kernels == ('fused' if 'fused' in name else 'plain')
    assert tpu_programs.configured('pg19', all_layers=True).model.num_layers == 12
    assert tpu_programs.configured('memorizing_pg19, approximate').model.memorizing.search == (
        'approximate'
    )
    assert tpu_programs.configured('expire_span_enwik8, 2 sizes').model.expire_span.num_sizes == 2


def test_times_are_those_of_the_chip():
    needs = dataclasses.replace(NEEDS, flops=197e9, gigabytes=0.819, cycles=None)
    assert tpu_programs.times('a (v5e:4x4)', needs) == ('1.0', '1.0', 'older', '')
    needs = dataclasses.replace(needs, cycles=6.0)
    assert tpu_programs.times('a (v5e:4x4)', needs) == ('1.0', '1.0', '4.0', '25%')
    assert tpu_programs.times('a (v4:2x2x1)', needs) == ('', '', '', '')


def test_the_page_has_the_recorded_tables():
    page = tpu_programs.PAGE.read_text()
    recorded = tpu_programs.read_table(tpu_programs.TABLE)
    fix = 'run python -m experiments.tpu_programs --write_page'
    assert tpu_programs.rendered(page, recorded) == page, fix


# Other rows, separated by semicolons, or 'all' that are recorded. A row takes minutes.
PROGRAMS = os.environ.get('LONGMEM_TPU_PROGRAMS', 'pg19, fused')
RECORDED = tpu_programs.read_table(tpu_programs.TABLE)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec('libtpu') is None, reason='needs the extra [tpu-aot]')
@pytest.mark.parametrize('name', list(RECORDED) if PROGRAMS == 'all' else PROGRAMS.split(';'))
def test_a_step_needs_no_more_than_recorded(name):
    # A process of its own: libtpu ends one whose XLA_FLAGS it does not know.
    variables = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
    command = [sys.executable, '-m', 'experiments.tpu_programs', name.strip()]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    print(done.stdout)  # shown by -s
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'recorded: ' in done.stdout, f'{name}: not recorded; run the command with --record'
