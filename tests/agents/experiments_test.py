"""Experiments with agents: what is held is counted step by step; seeds are kept; tables and figures."""

import sys

import jax
import numpy as np
import pytest

from experiments.reinforcement import corridor, floors, held, memories, portal, runs, spans
from longmem_jax.agents.acting import act, first_lanes
from tests.agents.small import small_config


@pytest.mark.slow
@pytest.mark.parametrize('memory, reach', [('transformer_xl', 3), ('expire_span', 5)])
def test_what_is_held_is_counted_at_every_step(memory, reach):
    """Spans are all alike before training: a query sees the last steps, inside of a segment or not."""
    config = small_config(memory)
    fields = config.model[memory]
    if memory == 'expire_span':  # spans of 3.5, and a ramp of 2: a mask above 0 up to 5 steps back
        fields.update(max_span=7, initial_share=0.5, ramp=2, position_length=2, capacity=0)
    else:
        fields.memory_length = reach
    once = runs.built(config)
    params, key = once.first_state().params, jax.random.key(3)
    found = held.program(once.model, once.environment)(params, key)
    segments = -(-once.environment.longest // once.model.segment_length)

    @jax.jit
    def acted(params, key):
        given = once.model, params, once.environment
        lanes = first_lanes(*given, held.LANES, jax.random.fold_in(key, 0))
        return act(*given, lanes, jax.random.fold_in(key, 1), segments=segments)[1]

    seen = acted(params, key)
    ended = np.asarray(seen.ended.swapaxes(0, 1).reshape(held.LANES, -1))
    before = [np.arange(row.argmax() + 1) for row in ended]
    assert max(map(len, before)) > reach + 1
    every = np.concatenate(before)
    assert found.mean == pytest.approx(np.minimum(every, reach).mean(), rel=1e-5)
    assert found.layers == pytest.approx([found.mean])
    assert found.before == pytest.approx(every.mean(), rel=1e-5)
    last = np.mean([min(row[-1], reach) for row in before])
    assert found.last == pytest.approx(last, rel=1e-5)


@pytest.mark.slow
def test_a_seed_is_trained_and_tested(tmp_path):
    config = small_config()
    config.train.num_steps = 2
    (found,) = runs.train(config, tmp_path, [3])
    assert [line['step'] for line in found['curve']] == [1, 2]
    assert 0 <= found['test']['reward'] <= 1 and found['held']['mean'] > 0


def test_finished_seeds_are_not_trained_again(tmp_path, monkeypatch):
    trained = []

    def train(config, paths):
        trained.append(list(paths))
        for seed, path in paths.items():
            path.write_text(f'{{"curve": [{seed}]}}')

    monkeypatch.setattr(runs, '_train', train)
    first = runs.train(small_config(), tmp_path, [3])
    assert first == [{'curve': [3]}] == runs.train(small_config(), tmp_path, [3])
    assert runs.train(small_config(), tmp_path, [3, 4]) == [*first, {'curve': [4]}]
    assert trained == [[3], [4]]


@pytest.mark.parametrize('task', [corridor.TASK, portal.TASK])
def test_table_and_figure_of_spans(task, tmp_path):
    """Means over seeds, steps held and bytes summed over layers; a point for every seed."""
    test = {'reward': 1.0, 'length': 11.5}
    held = {'mean': 2.25, 'last': 3.0, 'before': 6.0, 'layers': [1.0, 3.5]}
    seed = dict(test=test, test_greedy=test, held=held, parameters=1000, state_bytes_per_lane=4200)
    other = seed | {'test': test | {'reward': 0.5}}
    alone = seed | {'held': held | {'layers': [2.25]}}
    found = {(spans.FIXED, 8): [seed, other], (spans.LEARNED, 1e-5): [seed]}
    found[spans.ALONE, 8] = [alone]
    lines = spans.table(found).splitlines()
    assert lines[2].startswith('| fixed span 8 | 0.75 (0.50 - 1.00) | 1.00 | 4.5 | 6.0 | 4.2 |')
    assert lines[3].startswith('| Expire-Span, loss 1e-05 | 1.00')
    assert lines[4].startswith('| fixed span in one layer, 8 | 1.00 | 1.00 | 2.2 | 3.0 |')
    given = task.agent('memory=local').reinforcement
    ends = floors.FLOORS[given.environment](given.task.to_dict())
    spans.draw(found, ends, tmp_path / 'figure.png')
    assert (tmp_path / 'figure.png').stat().st_size


def test_spans_and_losses_follow_the_cells():
    """Those of 20 cells are the published ones; the loss of a span of a given share stays the same."""
    short, long = corridor.TASK, corridor.in_cells(100)
    assert (short.spans, short.alone, short.longest, short.ramp) == ((8, 16, 24), (24,), 40, 2)
    assert (short.losses, short.updates) == (pytest.approx((3e-5, 6e-5)), 60)
    assert (long.spans, long.alone, long.longest, long.ramp) == ((40, 80, 120), (120,), 200, 10)
    assert [loss * long.longest for loss in long.losses] == pytest.approx(
        [loss * short.longest for loss in short.losses]
    )
    rates = (
        spans.configuration(task, spans.ALONE, 24, 2).optimizer.schedule for task in (short, long)
    )
    assert [*rates] == ['constant', 'linear'] and long.updates == 600
    config = spans.configuration(long, spans.LEARNED, long.losses[0], 2)
    assert config.reinforcement.task.longest == 100
    assert config.reinforcement.discount**100 == pytest.approx(0.95**20, rel=0.05)


@pytest.mark.parametrize('cells', [corridor.LEAST - 1, corridor.LEAST, 100])
def test_cells_are_a_flag(cells, tmp_path, monkeypatch, capsys):
    """Too few are refused; others reach the environment, and the rows are those that were asked for."""
    trained = []
    monkeypatch.setattr(
        sys, 'argv', ['corridor', f'--output={tmp_path}', f'--cells={cells}', '--spans']
    )
    monkeypatch.setattr(runs, 'train', lambda config, folder, seeds: trained.append(config))
    monkeypatch.setattr(spans, 'table', lambda found: ' '.join(kind for kind, _ in found))
    monkeypatch.setattr(spans, 'draw', lambda *given: None)
    if cells < corridor.LEAST:
        with pytest.raises(SystemExit):
            spans.main(corridor.TASK, '', corridor.in_cells, corridor.LEAST)
        assert 'must be at least' in capsys.readouterr().err
        return
    spans.main(corridor.TASK, '', corridor.in_cells, corridor.LEAST)
    kinds = capsys.readouterr().out.splitlines()[0]
    assert kinds == f'{spans.ALONE} {spans.LEARNED} {spans.LEARNED}'
    for config in trained:
        assert config.reinforcement.task.longest == cells
        runs.built(config)  # spans of so few cells can still be learned


@pytest.mark.parametrize('task', [corridor.TASK, pytest.param(portal.TASK, marks=pytest.mark.slow)])
@pytest.mark.parametrize('kind, value', [(spans.FIXED, 8), (spans.ALONE, 8), (spans.LEARNED, 1e-5)])
def test_agents_with_spans_are_runnable(task, kind, value):
    config = spans.configuration(task, kind, value, 2)
    once = runs.built(config)
    assert once.environment.name == task.name and config.train.num_steps == 2
    assert config.model.num_layers == (1 if kind == spans.ALONE else 2)
    jax.eval_shape(once.make_state)


# Every memory in one task and every task with one memory in the fast tier.
PAIRS = [
    pytest.param(memory, task, marks=pytest.mark.slow if number and place else ())
    for number, memory in enumerate(memories.MEMORIES)
    for place, task in enumerate(memories.TASKS)
]


@pytest.mark.parametrize('memory, task', PAIRS)
def test_memories_of_all_tasks_are_runnable(memory, task):
    """No memory is too long for an episode, and what is asked for is never in the segment."""
    if task == 'memory_chain':
        pytest.importorskip('gymnax')
    once = runs.built(memories.configuration(task, memory))
    assert once.model.segment_length <= memories.BACK < once.environment.longest
    jax.eval_shape(once.make_state)


def test_answers_that_are_right_are_read_from_the_reward():
    seed = dict(test={'reward': -0.5}, parameters=1000, state_bytes_per_lane=2000)
    lines = memories.table({'local': [seed], 'linear': [seed | {'test': {'reward': 1.0}}]})
    assert lines.splitlines()[2:] == [
        '| `linear` | 1.00 | 100 | 1,000 | 2.0 |',
        '| `local` | -0.50 | 25 | 1,000 | 2.0 |',
    ]
