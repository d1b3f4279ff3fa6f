"""Stages of the training on pairs, and its table."""

from types import SimpleNamespace

from experiments.layer_memories import pairs


def test_a_document_fits_into_a_step_and_a_pair_into_a_segment():
    for row, (_, _, stages) in pairs.ROWS.items():
        for stage in stages:
            config = pairs.configuration(row, stage)
            train = config.train
            assert train.segments_per_step * train.segment_length == pairs.longest(stage), row
            assert config.data.task.sizes == stage.sizes and config.train.segment_length == 2


def test_at_once_has_as_many_tokens_as_all_stages():
    def tokens(stages):
        return sum(stage.lanes * stage.steps * pairs.longest(stage) for stage in stages)

    assert 0 <= tokens(pairs.STAGES) - tokens([pairs.AT_ONCE]) < pairs.AT_ONCE.lanes * 128
    assert set(pairs.AT_ONCE.sizes) == {size for stage in pairs.STAGES for size in stage.sizes}


def test_a_stage_begins_with_the_parameters_of_the_one_before():
    begun = []

    def trainer(number):
        def train(seed, enough, recent, begin):
            begun.append((seed, begin))
            return SimpleNamespace(steps=10 * number, params=f'of stage {number}')

        return SimpleNamespace(train=train)

    steps, last = pairs.trained([trainer(1), trainer(2), trainer(3)], 7)
    assert steps == [10, 20, 30] and last.params == 'of stage 3'
    assert begun == [(7, None), (7, 'of stage 1'), (7, 'of stage 2')]


def test_a_row_has_its_seeds_and_its_memory_reset():
    def cell(kept):
        return {'scores': {'2 pairs': {'kept': kept, 'reset': 0.05}}}

    text = pairs.table({'armt': [cell(0.9), cell(1.0)]}, {'2 pairs': {'any value': 0.5}})
    assert text.splitlines()[2:] == [
        '| `armt` | 2 | 95 (90 - 100) |',
        '| `armt`, memory reset | 2 | 5 |',
        '| rule: any value |  | 50 |',
    ]
