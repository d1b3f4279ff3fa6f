"""Replay happens when the papers say, and never not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longmem_jax.errors import UsageError
from longmem_jax.lifelong import schedule
from longmem_jax.lifelong.schedule import Sparse

TEXT, RELATIONS = Sparse(9600, 0.01), Sparse(1600, 0.01)


def test_the_schedules_of_the_papers():
    assert schedule.episodes(TEXT, 16, 5) == 101
    assert schedule.episodes(RELATIONS, 4, 5) == 67
    assert schedule.batches(TEXT, 16) == 6 and schedule.batches(RELATIONS, 4) == 4
    assert schedule.rows(TEXT) == 96 and schedule.rows(RELATIONS) == 16
    assert schedule.stream_steps(TEXT, 16) == 600 and schedule.stream_steps(RELATIONS, 4) == 400
    # One replay in 9,680 rows.
    assert schedule.episode_replays(TEXT, 16, 5, 9680 * 59) == 59
    assert schedule.episode_replays(TEXT, 16, 5, 9680 * 59 - 16) == 58
    assert schedule.stream_replays(TEXT, 16, 575_000) == 59


def test_a_batch_that_does_not_divide_the_interval():
    """ceil((100 / 16 + 1) / 7) is 2, but of whole batches it is 1: the release counts those."""
    assert schedule.episodes(Sparse(100, 0.5), 16, 6) == 1


def test_a_product_that_is_not_exact():
    assert schedule.rows(Sparse(100, 0.29)) == 29


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5), st.integers(1, 300))
def test_expected_replays_are_those_of_a_walk(every, batch, updates, stream):
    frequency = schedule.episodes(Sparse(every, 0.5), batch, updates)
    position = episode = replays = 0
    while position + (updates - 1) * batch < stream:
        episode += 1
        replay = episode % frequency == 0
        replays += replay
        position += (updates + (not replay)) * batch
    assert schedule.episode_replays(Sparse(every, 0.5), batch, updates, stream) == replays


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 300))
def test_expected_replays_of_steps_are_those_of_a_walk(every, batch, stream):
    sparse = Sparse(max(every, batch), 0.5)
    steps = range(1, len(range(0, stream, batch)) + 1)
    wanted = sum(step % schedule.stream_steps(sparse, batch) == 0 for step in steps)
    assert schedule.stream_replays(sparse, batch, stream) == wanted


def test_the_user_is_told():
    (line,) = schedule.episode_lines(TEXT, 16, 5, 96, 575_000)
    assert '101' in line and '96 rows' in line and '59 times' in line and '9680' in line
    (line,) = schedule.stream_lines(TEXT, 16, 96, 575_000)
    assert '600 batches' in line and '59 times' in line


@pytest.mark.parametrize(
    'ask',
    [
        lambda: schedule.batches(Sparse(480, 0.01), 16),
        lambda: schedule.rows(Sparse(99, 0.01)),
        lambda: schedule.stream_steps(Sparse(8, 0.5), 16),
        lambda: schedule.episode_lines(TEXT, 16, 5, 96, 9663),
        lambda: schedule.stream_lines(TEXT, 16, 96, 9584),
    ],
)
def test_no_replay_is_refused(ask):
    with pytest.raises(UsageError, match='replay'):
        ask()


def test_advice_is_enough():
    with pytest.raises(UsageError, match='at least 1600,'):
        schedule.batches(Sparse(480, 0.01), 16)
    assert schedule.batches(Sparse(1600, 0.01), 16) == 1


def test_problems():
    assert not schedule.check(9600, 0.01)
    assert [problem.split()[0] for problem in schedule.check(0, 0.0)] == [
        'replay_every',
        'replay_rate',
    ]
    assert schedule.check(1, 1.5)
