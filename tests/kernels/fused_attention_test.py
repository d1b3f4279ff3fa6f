"""The fused attention against the plain one: values and all derivatives, by Pallas's interpreter."""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import subjaxprs

from longmem_jax.attention import attend as attention
from longmem_jax.attention import fused_rules
from longmem_jax.attention.rules import RelativeTable, Rules
from longmem_jax.attention.weight_dropout import WeightDropout
from longmem_jax.devices.gpus import GPUS
from longmem_jax.errors import UsageError
from longmem_jax.kernels import fused_attention, fused_devices, fused_plan
from longmem_jax.kernels.attention_products import mix
from longmem_jax.kernels.gpu import by_distance
from longmem_jax.layers.switching import bound, switch
from tests.kernels.interpreted import interpret, normal

BATCH, HEADS, WIDTH = 2, 2, 8
LENGTH, MEMORY = 21, 30  # no multiples of blocks
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True, params=['tpu', 'cuda'])
def small_blocks(monkeypatch, request):
    """Several blocks of queries and of keys, the last ones not full; the interpreter runs them."""
    interpret(monkeypatch, fused_attention, request.param, BLOCK_QUERIES=8, BLOCK_KEYS=16)


def vectors(kv_heads=HEADS, keys=LENGTH + MEMORY):
    """Queries, keys, values."""
    return (
        normal(0, BATCH, HEADS, LENGTH, WIDTH),
        normal(1, BATCH, kv_heads, keys, WIDTH),
        normal(2, BATCH, kv_heads, keys, WIDTH),
    )


def with_derivatives(function, *arguments):
    """Its result, and the derivatives of a sum of it by all arguments."""

    def value(*arguments):
        out = function(*arguments)
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum(), out

    numbers = tuple(range(len(arguments)))
    (_, out), found = jax.jit(jax.value_and_grad(value, numbers, has_aux=True))(*arguments)
    return out, found


def rules_of(case, positions, table, bias):
    """`Rules` of a case, with the arrays that have derivatives."""
    first = jnp.asarray([0, MEMORY], jnp.int32)  # one lane has no memory
    return {
        'content': Rules(offset=MEMORY),
        'transformer_xl': Rules(
            offset=MEMORY, first=first, relative=RelativeTable(positions, table)
        ),
        'clamped': Rules(
            offset=MEMORY, window=13, scale=0.7, relative=RelativeTable(positions, table[:, :9])
        ),
        'bias': Rules(offset=MEMORY, first=first - 2, window=19, distance_bias=bias),
        'both': Rules(
            offset=MEMORY, distance_bias=bias[:, :11], relative=RelativeTable(positions, table)
        ),
    }[case]


@pytest.mark.parametrize(
    'case',
    [
        'transformer_xl',
        'both',
        *(pytest.param(c, marks=SLOW) for c in ('content', 'clamped', 'bias')),
    ],
)
def test_is_the_plain_attention(case):
    arguments = (
        *vectors(kv_heads=1 if case == 'clamped' else HEADS),
        normal(3, BATCH, HEADS, LENGTH, WIDTH),
        normal(4, HEADS, LENGTH + MEMORY, WIDTH),
        normal(5, HEADS, LENGTH + MEMORY),
    )

    def by(attend):
        def function(queries, keys, values, *others):
            return attend(queries, keys, values, rules_of(case, *others))

        return with_derivatives(function, *arguments)

    chex.assert_trees_all_close(by(attention.attend), by(fused_rules.attend), atol=2e-5)


def test_half_precision_rounds_only_its_inputs():
    arguments = tuple(array.astype(jnp.bfloat16) for array in vectors())
    exact = with_derivatives(
        lambda *vectors: attention.attend(*vectors, Rules(offset=MEMORY)),
        *(array.astype(jnp.float32) for array in arguments),
    )
    found = with_derivatives(
        lambda *vectors: fused_rules.attend(*vectors, Rules(offset=MEMORY)), *arguments
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(jnp.bfloat16)}
    chex.assert_trees_all_close(exact, jax.tree.map(jnp.float32, found), atol=0.05)


def spans_case(per_lane):
    """`since`, `until`, `remaining` of keys that expire, per lane or per head; lane 1 has none old."""
    index = jnp.arange(LENGTH + MEMORY, dtype=jnp.int32)[None] - MEMORY
    first = jnp.asarray([[-MEMORY], [0]], jnp.int32)
    since = jnp.where(index >= first, index + 1, fused_plan.NEVER_SINCE)
    until = index + 40
    span = jax.random.uniform(jax.random.key(6), (BATCH, 1, LENGTH + MEMORY), maxval=60.0)
    if not per_lane:
        span = jnp.asarray([3.3, 45.7])[None, :, None]
    return since, until, span + 1 + index[:, None]


@pytest.mark.parametrize(
    'per_lane', [True, pytest.param(False, marks=SLOW)], ids=['per lane', 'per head']
)
def test_soft_masks_and_near_positions(per_lane):
    """As `mix`: learned spans, a table shared by heads that ends, dropout drawn per key number."""
    since, until, remaining = spans_case(per_lane)
    near, ramp, rate, offset = 18, 7, 0.4, MEMORY
    seeds = jnp.asarray([[5, -7], [11, 2**30]], jnp.int32)
    numbers = jnp.arange(LENGTH + MEMORY, dtype=jnp.int32) * 3 - MEMORY
    table = normal(4, near + 1, WIDTH).at[0].set(0)
    query = jnp.arange(LENGTH, dtype=jnp.int32)[:, None]
    distance = offset + query - jnp.arange(LENGTH + MEMORY)

    def plain(queries, keys, values, table, remaining):
        by_distance = jnp.einsum('bhqd,cd->bhqc', queries, table)
        index = jnp.broadcast_to(jnp.clip(distance, 0, near), (BATCH, HEADS, *distance.shape))
        scores = jnp.take_along_axis(by_distance, index, axis=3)
        scores = jnp.where((distance >= 0) & (distance <= near), scores, 0)
        scores += jnp.einsum('bhqd,bhkd->bhqk', queries, keys)
        soft = jnp.clip((remaining[:, :, None] - query) / ramp + 1, 0, 1)
        seen = (query >= since[:, None]) & (query < until[:, None])
        factor = jax.vmap(
            jax.vmap(lambda seed: fused_plan.dropout_factor(rate, seed, query, numbers[None]))
        )(seeds)
        return mix(scores, values, seen[:, None], jnp.broadcast_to(soft, scores.shape), factor)

    def fused(queries, keys, values, table, remaining):
        return fused_attention.attend_fused(
            queries,
            keys,
            values,
            since=since,
            until=until,
            by_distance=fused_attention.ByDistance(offset, queries, table[None], zero_beyond=True),
            remaining=remaining,
            ramp=ramp,
            numbers=numbers,
            dropout=rate,
            seeds=seeds,
        )

    arguments = (*vectors(), table, remaining)
    expected = with_derivatives(plain, *arguments)
    assert np.abs(expected[1][4]).max() > 1e-3, 'no key is on its ramp'
    chex.assert_trees_all_close(expected, with_derivatives(fused, *arguments), atol=3e-5)


@pytest.mark.slow
def test_heads_one_after_the_other_are_all_at_once(monkeypatch, small_blocks):
    """On GPUs, where scores by distance would be too large; with tables of heads, and a shared one."""
    if fused_devices.INTERPRETED != 'cuda':
        pytest.skip('TPUs keep no scores by distance in memory')
    since, until, _ = spans_case(per_lane=True)
    remaining = normal(6, 1, 4, LENGTH + MEMORY) * 10 + jnp.arange(LENGTH + MEMORY) + 10 - MEMORY
    arguments = (
        normal(0, BATCH, 4, LENGTH, WIDTH),
        normal(1, BATCH, 2, LENGTH + MEMORY, WIDTH),
        normal(2, BATCH, 2, LENGTH + MEMORY, WIDTH),
        normal(4, 4, 19, WIDTH),
        normal(5, 4, 11),
        remaining,
    )

    def by(shared):
        def function(queries, keys, values, table, bias, remaining):
            table = table[:1] if shared else table
            return fused_attention.attend_fused(
                queries, keys, values, since=since, until=until, remaining=remaining, ramp=7,
                by_distance=fused_attention.ByDistance(MEMORY, queries, table, bias),
                dropout=0.3, seeds=jnp.arange(8, dtype=jnp.int32).reshape(BATCH, 4),
            )  # fmt: skip

        return with_derivatives(function, *arguments)

    together = [by(shared) for shared in (False, True)]
    monkeypatch.setattr(by_distance, 'LARGEST', 1)
    apart = [by(shared) for shared in (False, True)]
    assert all(np.asarray(slope).any() for slope in together[0][1])
    chex.assert_trees_all_close(together, apart, atol=2e-5)


@SLOW
def test_groups_of_heads_and_large_scores():
    """Scores of hundreds, also of keys that are not seen, of heads that share keys in pairs."""
    arguments = (
        normal(0, BATCH, 4, LENGTH, WIDTH),
        normal(1, BATCH, 2, LENGTH + MEMORY, WIDTH),
        normal(2, BATCH, 2, LENGTH + MEMORY, WIDTH),
    )

    def by(attend):
        rules = Rules(offset=MEMORY, scale=50.0)
        return with_derivatives(lambda *vectors: attend(*vectors, rules), *arguments)

    chex.assert_trees_all_close(by(attention.attend), by(fused_rules.attend), atol=1e-3, rtol=1e-3)


def test_soft_masks_that_almost_vanish():
    """As `mix`, 1e-8 is added to the sum of the weights: what is read shrinks with the mask."""
    values = vectors()[2]
    remaining = jnp.full((1, 1, LENGTH + MEMORY), np.nextafter(np.float32(-1), np.float32(0)))
    whole = jnp.zeros((1, LENGTH + MEMORY), jnp.int32)
    out = fused_attention.attend_fused(
        jnp.zeros((BATCH, HEADS, LENGTH, WIDTH)),
        values,
        values,
        since=whole,
        until=whole + fused_plan.NEVER_SINCE,
        remaining=remaining,
        ramp=1,
    )
    soft = 2.0**-24  # of query 0, the only one with some
    expected = values.mean(axis=2) * (soft / (soft + 1e-8))
    chex.assert_trees_all_close(out[:, :, 0], expected, atol=1e-4)
    assert not np.asarray(out[:, :, 1:]).any()


def test_dropout_drops_its_share_without_a_pattern():
    query = jnp.arange(300, dtype=jnp.int32)[:, None]
    key = jnp.arange(400, dtype=jnp.int32)[None]
    factors = [fused_plan.dropout_factor(0.3, jnp.int32(seed), query, key) for seed in (0, 1)]
    kept = np.asarray(factors) > 0
    np.testing.assert_allclose(np.asarray(factors)[kept], 1 / 0.7, rtol=1e-6)
    assert abs(kept.mean() - 0.7) < 0.005
    for axis in (1, 2):  # no row, no column has another share
        share = kept.mean(axis=axis)
        assert np.abs(share - 0.7).max() < 5 * np.sqrt(0.21 / kept.shape[axis])
    # Neighbours and other seeds are independent: both are kept with .7^2.
    for pair in (
        kept[:, :, 1:] & kept[:, :, :-1],
        kept[:, 1:] & kept[:, :-1],
        kept[0] & kept[1],
        kept[0, 1:, 1:] & kept[0, :-1, :-1],
    ):
        assert abs(pair.mean() - 0.49) < 0.005


def test_plain_dropout_of_a_rule_has_its_share():
    """The mean over keys of equal values is one: what is kept is divided by its share."""
    queries, keys, values = vectors()
    dropout = WeightDropout(jax.random.key(0), 0.25)
    out = fused_rules.attend(
        0 * queries, keys, jnp.ones_like(values), Rules(offset=MEMORY), dropout
    )
    assert out.std() > 0.01
    np.testing.assert_allclose(out.mean(), 1, atol=0.03)


def test_blocks_that_nothing_sees_are_not_read():
    """What lies there may be anything: not a number of it is in a result."""
    queries, keys, values = vectors()
    cut = 16  # a whole block
    keys, values = (array.at[:, :, :cut].set(jnp.nan) for array in (keys, values))

    def attend(queries, keys, values):
        first = jnp.full((BATCH,), cut, jnp.int32)
        return fused_rules.attend(queries, keys, values, Rules(offset=MEMORY, first=first))

    out, (to_queries, to_keys, to_values) = with_derivatives(attend, queries, keys, values)
    chex.assert_tree_all_finite((out, to_queries, to_keys, to_values))
    assert not np.asarray(to_keys[:, :, :cut]).any()


def test_every_device_reads_its_own_lanes_and_heads():
    arguments = (
        *vectors(),
        normal(3, BATCH, HEADS, LENGTH, WIDTH),
        normal(4, HEADS, LENGTH + MEMORY, WIDTH),
    )

    def function(queries, keys, values, positions, table):
        rules = rules_of('transformer_xl', positions, table, jnp.zeros((HEADS, 11)))
        dropout = WeightDropout(jax.random.key(1), 0.2)
        return fused_rules.attend(queries, keys, values, rules, dropout)

    alone = with_derivatives(function, *arguments)
    mesh = jax.make_mesh(
        (2, 1, 2, 2),
        ('data', 'fsdp', 'tensor', 'memory'),
        axis_types=(jax.sharding.AxisType.Auto,) * 4,
    )
    with jax.set_mesh(mesh):
        split = with_derivatives(function, *arguments)
    assert split[0].sharding.spec[:2] == ('data', 'tensor')
    chex.assert_trees_all_close(alone, jax.device_get(split), atol=2e-5)


def test_rules_that_it_does_not_have_are_refused():
    queries, keys, values = vectors()
    for name, rules in {
        'mask': Rules(offset=MEMORY, mask=jnp.ones((1, 1, 1, 1), bool)),
        'bias': Rules(offset=MEMORY, bias=jnp.ones((1, 1, 1, 1))),
        'causal': Rules(offset=MEMORY, causal=False),
    }.items():
        with pytest.raises(UsageError, match=f"has no {name}.*kernels='plain'"):
            fused_rules.attend(queries, keys, values, rules)


def test_is_lowered_for_gpus(monkeypatch):
    """Forwards and backwards in Triton, bfloat16; no GPU is needed."""
    monkeypatch.setattr(fused_devices, 'INTERPRETED', '')
    monkeypatch.setattr(fused_attention, 'BLOCK_QUERIES', 128)
    vectors = [jax.ShapeDtypeStruct((2, 2, 300, 48), jnp.bfloat16)] * 4
    table = jax.ShapeDtypeStruct((2, 300, 48), jnp.bfloat16)

    def value(queries, keys, values, positions, table):
        rules = Rules(offset=0, window=200, relative=RelativeTable(positions, table))
        dropout = WeightDropout(jax.random.key(0), 0.1)
        return fused_rules.attend(queries, keys, values, rules, dropout).sum(dtype=jnp.float32)

    step = jax.jit(jax.grad(value, (0, 1, 2, 3, 4)))
    # From 0.11.2 on, JAX must be told for which GPU, if there is none.
    device = jax.sharding.AbstractDevice(GPUS['h100'].kind, None, 'gpu')
    mesh = jax.sharding.AbstractMesh((1,), ('data',), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        program = step.trace(*vectors, table).lower(lowering_platforms=('cuda',)).as_text()
    found = re.findall(r'name = "(fused_attention_\w+)"', program)
    assert sorted(found) == [
        'fused_attention_forward',
        'fused_attention_keys',
        'fused_attention_queries',
    ]


def read_last(size, queries, keys, values):
    """Reads the last `size` keys."""
    return fused_rules.attend(queries, keys[:, :, -size:], values[:, :, -size:], Rules(offset=9))


def used_forward(program):
    """How many forward kernels give what is used."""
    used = {id(v) for each in program.eqns for v in each.invars} | {*map(id, program.outvars)}
    found = [
        each.primitive.name == 'pallas_call'
        and 'fused_attention_forward' in str(each.params)
        and any(id(v) in used for v in each.outvars)
        for each in program.eqns
    ]
    return sum(found) + sum(map(used_forward, subjaxprs(program)))


def test_is_not_run_again_for_the_derivatives_of_a_switch():
    """`layers.switching` computes a branch again, but keeps what the kernel gives."""

    def value(*arrays):
        return switch(bound(read_last), (30, 40), jnp.int32(30), *arrays).sum()

    program = jax.make_jaxpr(jax.grad(value, (0, 1, 2)))(*vectors()).jaxpr
    # XLA leaves out a kernel of which nothing is used, JAX does not.
    assert used_forward(program) == 2, 'once for each of two sizes; see `fused_plan.READ`'


@SLOW
@pytest.mark.skipif(importlib.util.find_spec('libtpu') is None, reason='needs the extra [tpu-aot]')
@pytest.mark.parametrize('topology', ['v5e:2x2', 'v5p:2x2x1'])
def test_compiles_for_tpus(topology):
    """Forwards and backwards with all parts together; no scores are in the memory of the chip."""
    # A process of its own: libtpu ends one whose XLA_FLAGS it does not know.
    variables = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
    command = [sys.executable, '-m', 'tests.kernels.fused_compiling', topology]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, found in json.loads(done.stdout.splitlines()[-1]).items():
        kernel = f'fused_{name.split()[0]}'
        assert found['kernels'] == [f'{kernel}_backward', f'{kernel}_forward'], name
        assert found['temporaries'] < found['scores'], f'{name}: scores are in memory'


def test_rows_by_distance_are_those_that_are_read(small_blocks):
    """On GPUs, where they are in memory: none of keys after their queries, none beyond the reach."""
    if fused_devices.INTERPRETED != 'cuda':
        pytest.skip('TPUs keep no scores by distance in memory')
    plan = fused_plan.Plan(256, 512, 512, 1536, num_heads=1, offset=1024)
    assert plan.rows == 2048
    inputs = fused_plan.Inputs(**dict.fromkeys(fused_plan.Inputs._fields))
    assert by_distance.rows_read(plan, inputs) == (0, 1536)
    assert by_distance.rows_read(dataclasses.replace(plan, reach=1024), inputs) == (496, 1536)
