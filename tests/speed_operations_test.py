"""Time by kind of operation: kinds and products of a real program, sums of a made-up trace."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from experiments.speed import operations, programs
from experiments.speed.programs import Program
from longmem_jax.kernels.cpu.top_k import top_k

MADE_UP = """HloModule jit_made_up, is_scheduled=true

%body (x: f32[2,3]) -> f32[2,3] {
  %x = f32[2,3]{1,0} parameter(0)
  ROOT %half = f32[2,3]{1,0} multiply(%x, %x)
}

%inner (a: f32[2,3], b: f32[3,5]) -> f32[2,5] {
  %a = f32[2,3]{1,0} parameter(0)
  %b = f32[3,5]{1,0} parameter(1)
  ROOT %product = f32[2,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (p: f32[2,3], q: f32[3,5]) -> f32[2,5] {
  %p = f32[2,3]{1,0} parameter(0)
  %q = f32[3,5]{1,0} parameter(1)
  %loop = f32[2,3]{1,0} while(%p), condition=%never, body=%body
  ROOT %fused = f32[2,5]{1,0} fusion(%loop, %q), kind=kCustom, calls=%inner
}
"""


def kinds_of(function, *shapes):
    """Kinds of the operations of a compiled function, and all its products' operations."""
    arguments = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    program = Program(jax.jit(function).lower(*arguments).compile().as_text())
    entry = [name for name, o in program.operations.items() if o.code != 'parameter']
    flops = sum(o.code == 'dot' and program.flops(n) for n, o in program.operations.items())
    return {program.kind(name) for name in entry}, flops


@pytest.mark.parametrize(
    ('kind', 'function', 'shapes'),
    [
        (programs.LARGEST, lambda x: top_k(x, 8)[0], [(64, 512)]),
        (programs.LARGEST, lambda x: jax.lax.top_k(x, 8)[0], [(64, 512)]),
        (programs.LARGEST, lambda x: jnp.sort(x), [(64, 512)]),
        (programs.GATHER, lambda x, y: x[y[0].astype(int)], [(64, 32), (5, 7)]),
        (programs.SCATTER, lambda x, y: x.at[y[0].astype(int)].add(1.0), [(64, 32), (5, 7)]),
        (programs.MIXED, lambda x: jnp.pad(jnp.exp(x), ((0, 0), (3, 0))), [(64, 32)]),
        (programs.MOVES, lambda x: x.T, [(64, 32)]),
        (programs.OTHERS, lambda x: jnp.exp(x) * x, [(64, 32)]),
    ],
)
def test_kinds(kind, function, shapes):
    """If the name of `top_k` has changed, so must `programs.LARGEST_NAME`."""
    assert kind in kinds_of(function, *shapes)[0]


def test_products_are_counted():
    def products(x, y):
        return jnp.einsum('bqd,bkd->bqk', x, y), (x @ x.mT).sum()

    kinds, flops = kinds_of(products, (4, 16, 8), (4, 32, 8))
    assert programs.PRODUCTS in kinds
    assert flops == 2 * 4 * 16 * 8 * (32 + 16)


def test_times_of_a_trace():
    program = Program(MADE_UP)
    assert [program.kind(name) for name in ('fused', 'loop', 'half')] == [
        programs.PRODUCTS, '', programs.OTHERS,
    ]  # fmt: skip
    runs = {
        'loop': [(0.0, 4.0), (20.0, 24.0)],
        'half': [(0.5, 1.5), (2.0, 3.0), (20.5, 21.5), (22.0, 23.0)],
        # At first next to the end of the loop; then two at once.
        'fused': [(3.5, 7.0), (24.0, 28.0), (25.0, 29.0)],
    }
    times = operations.times_of(program, runs, 40.0, 60.0, 2)
    assert times.wall == 20 and times.flops == 1.5 * 2 * 2 * 5 * 3 and times.cores == 1.5
    assert times.kinds[programs.PRODUCTS] == 4.25 and times.kinds[programs.OTHERS] == 2
    # Each loop is alone for 4 ms less two halves of 1 ms, the first one also less half a product.
    assert times.control == pytest.approx((1.5 + 2) / 2)
    assert times.idle == pytest.approx((40 - 16) / 2)
    cells = operations.as_table({'made up': times}).splitlines()[2].split(' | ')
    assert cells[1:3] == ['20.0', '4.2'] and len(cells) == len(programs.KINDS) + 7


def event(name, first, last, **stats):
    """An event of a trace, in milliseconds."""
    return SimpleNamespace(
        name=name, start_ns=1e6 * first, duration_ns=1e6 * (last - first), stats=stats.items()
    )


def test_an_operation_lasts_until_its_last_part_on_any_thread():
    def operation(name, first, last, number):
        return event(name, first, last, hlo_module='jit_made_up', _p=number)

    starts = [operation('fused', 1.0, 1.5, 7), operation('loop', 20.0, 21.0, 8)]
    starts += [operation('fused', 40.0, 43.0, 9), event('end: fused', 43.001, 43.002, _c=9)]
    starts += [operation('half', 50.0, 51.0, 10)]
    # The first one ends at 4, where its thread begins with what waited for it, and says so at 9.001.
    ends = [event(operations.EXECUTE, 4.0, 9.0), event('end: fused', 9.001, 9.002, _c=7)]
    ends += [event(operations.EXECUTE, 10.0, 22.0), event('end: loop', 24.0, 24.1, _c=8)]
    threads = [SimpleNamespace(events=events) for events in (ends, starts)]
    runs = operations.runs_of(Program(MADE_UP), [SimpleNamespace(lines=threads)])
    assert runs == {
        'fused': [(1.0, 4.0), (40.0, pytest.approx(43.001))],
        'loop': [(20.0, 24.0)],
        'half': [(50.0, 51.0)],
    }


def test_a_toy(capsys):
    arguments = ['--peer=product_keys', '--case=128', '--toy', '--steps=2', '--most=3']
    times = operations.main(arguments)['product_keys 128']
    seen = [kind for kind in (programs.PRODUCTS, programs.LARGEST) if times.kinds[kind]]
    assert seen == [programs.PRODUCTS, programs.LARGEST] and times.rate > 0
    assert '| product_keys 128 |' in capsys.readouterr().out


def test_an_unknown_case_is_named(capsys):
    with pytest.raises(SystemExit):
        operations.main(['--peer=infini', '--case=fixed'])
    assert '--peer=infini has delta' in capsys.readouterr().err


def test_a_step_is_needed(capsys):
    with pytest.raises(SystemExit):
        operations.main(['--peer=infini', '--toy', '--steps=0'])
    assert '--steps=0, --most=0: at least 1 and 0' in capsys.readouterr().err
