"""Messages of the comparisons: the promise, the indices, the size, the fix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longmem_jax.testing.assertions import (
    assert_close,
    assert_differs,
    assert_equal,
    assert_finite,
    assert_no_open_loop,
    assert_same_types,
)

ZEROS = np.zeros((3, 2, 4, 5), np.float32)
AXES = ('segment', 'row', 'position')


def test_a_difference_is_placed_and_measured():
    found = ZEROS.copy()
    found[1, 0, 2, 4] = found[1, 0, 3, 0] = 0.5
    with pytest.raises(AssertionError) as error:
        assert_close(found, ZEROS, 'padding changed the logits', 'Mask.', axes=AXES, atol=1e-5)
    assert str(error.value) == (
        'padding changed the logits at segment 1; row 0; position 2, 3: 2 of 120 values, '
        'by up to 0.5, allowed 1e-05.\nMask.'
    )
    assert_close(found, ZEROS, '', '', atol=0.6)
    with pytest.raises(AssertionError, match='other value: 1 of 1 values, by up to 2, allowed 0'):
        assert_equal(np.ones(()), np.full((), 3.0), 'other value', 'Count.')
    with pytest.raises(AssertionError, match='by up to 2, allowed 0.03'):
        assert_close(np.ones(()), np.full((), 3.0), 'other value', 'Count.', atol=0.0, rtol=0.01)


def test_leaves_are_named_and_nan_is_a_difference():
    found = dict(hidden=ZEROS, count=np.asarray([1.0, np.nan]))
    with pytest.raises(AssertionError, match=r"state changed \(\['count'\]\) at row 1: 1 of 2"):
        wanted = dict(hidden=ZEROS, count=np.ones(2))
        assert_equal(found, wanted, 'state changed', 'Select.', axes=('row',))
    with pytest.raises(AssertionError, match='log of 0.*where state changed .*row 1'):
        assert_equal(found, found, 'state changed', 'Select.', axes=('row',))
    with pytest.raises(AssertionError, match=r"not finite: \['count'\].\nGuard."):
        assert_finite(found, 'gradients are not finite', 'Guard.')
    with pytest.raises(AssertionError, match=r'int64\[2\], not a leaf'):
        types = dict(hidden=ZEROS, count=ZEROS[0, 0, 0], more=np.zeros(2, np.int64))
        assert_same_types(types, dict(hidden=ZEROS, count=ZEROS[0, 0, 0]), 'types', 'Cast.')


def test_what_must_differ_is_said():
    with pytest.raises(AssertionError, match='nothing is read: the largest difference is 0'):
        assert_differs(ZEROS, ZEROS, 'nothing is read', 'Read.')
    with pytest.raises(AssertionError, match='log of 0.*instead of: nothing is read'):
        assert_differs(ZEROS, ZEROS + np.nan, 'nothing is read', 'Read.')


def test_loops_that_wait_on_data_are_found_wherever_they_are():
    def fixed(count):
        return jax.lax.fori_loop(0, 3, lambda i, total: total + i, count)

    def open_loop(count):
        return jax.lax.fori_loop(0, count, lambda i, total: total + i, 0)

    def inside(count):
        return jax.jit(lambda c: jax.lax.cond(c > 3, open_loop, fixed, c))(count)

    count = jnp.asarray(5)
    assert_no_open_loop(jax.make_jaxpr(fixed)(count).jaxpr, '', '')
    for function in (open_loop, inside):
        with pytest.raises(AssertionError, match='the time depends'):
            assert_no_open_loop(jax.make_jaxpr(function)(count).jaxpr, 'the time depends', 'Fix.')


@pytest.mark.parametrize('again', [False, True])
def test_a_loop_of_one_turn_is_a_branch(again):
    def turns(count):
        def body(carry):
            return carry[1] > 7 if again else False, carry[1] + 1

        return jax.lax.while_loop(lambda carry: carry[0], body, (count > 3, count))

    program = jax.make_jaxpr(turns)(jnp.asarray(5)).jaxpr
    if again:
        with pytest.raises(AssertionError, match='1 open loops'):
            assert_no_open_loop(program, 'the time depends', 'Fix.')
    else:
        assert_no_open_loop(program, 'the time depends', 'Fix.')
