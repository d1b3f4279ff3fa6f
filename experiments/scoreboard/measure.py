"""Trains a row on the task of a column and scores it: the numbers of its cells."""

import time
from collections.abc import Iterator
from typing import Any

import jax

from experiments.scoreboard import rows
from experiments.scoreboard.cells import Column
from experiments.short_trainings import Trained, Trainer
from experiments.speed.bench import state_bytes
from longmem_jax.config import overrides
from longmem_jax.data.tasks.recall import MIXED
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.evaluation import floors as rules
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment

ENOUGH, RECENT = (
    0.995,
    100,
)  # share of right answers that ends a training, over this number of steps
# Tested beyond what is trained, by size of the backbone.
PAIRS = {
    'tiny': ((32, 4), (64, 8), (128, 16), (256, 32), (512, 60)),
    '': ((128, 8), (256, 16), (512, 32), (1024, 64), (2048, 128)),
}
NEAR = {'tiny': (16, 64, 256, 1024), '': (32, 256, 1024, 2048, 16_384)}
# Of memories that do not store tokens one by one, with fewer documents; as long as they answer.
FAR = (16_384, 1_048_576)
FAR_DOCUMENTS = 16
ANSWERS = 0.5  # the share of right answers at a distance below which no longer one is asked,
GUESSED = 0.1  # and the share of digits that are guessed, as which longer ones count then


def config_of(row: rows.Row, column: Column, size: str, flags: list[str], novels: str) -> Any:
    """The configuration of a cell: that of its command, with the flags of the row."""
    config = rows.config_of(row.name, size, column.task)
    if column.name == 'novels':
        flags = [*flags, f'--config.data.path={novels}']
    _, changes = overrides.split_arguments([*row.flags, *flags])
    overrides.apply(config, changes)
    return config


def scores(
    row: rows.Row, column: Column, config: Any, size: str, seeds: list[int]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Trains and scores a row with several seeds; compiles once.

    Yields:
      A seed and its cell: `scores`, steps, `decided`, `parameters`, `positions`, `state_bytes`,
      `flags`, `seconds`. `scores` is {table: {size: {'kept', 'reset', ...}}}.
    """
    began = time.monotonic()
    trainer = Trainer(config)
    for seed in seeds:
        answers = column.task in TASKS
        trained = trainer.train(seed, ENOUGH if answers else None, RECENT)
        score = {'mqar': _mqar, 'recall': _recall}.get(column.task, _text)
        found = score(trained, trainer.evaluator, size, row)
        yield (
            seed,
            {
                'scores': found if column.task == 'recall' else {column.name: found},
                'steps': trained.steps,
                'decided': trained.decided,
                'training': [
                    line['accuracy'] if answers else line['loss'] for line in trained.lines
                ],
                'parameters': row.parameters,
                'positions': row.positions,
                'flags': row.flags,
                'state_bytes': _state_bytes(trained),
                'seconds': time.monotonic() - began,
            },
        )
        began = time.monotonic()


def _state_bytes(trained: Trained) -> int:
    """Bytes of what one lane carries from segment to segment."""
    model = trained.experiment.evaluation_model
    state = jax.eval_shape(
        lambda params: model.apply({'params': params}, 1, method='initial_state'), trained.params
    )
    return state_bytes(state)


def _score(trained: Trained, evaluator: Evaluator, reset: bool, **task: Any) -> dict[str, Any]:
    """Right answers on test documents of a task with some fields set differently."""
    data = trained.experiment.config.data
    corpus = TASKS[data.source].corpus(data.task.to_dict() | task, 'test', data.seed)
    kept, _ = evaluator.evaluate(trained.params, corpus, 'test')
    score = {'answers': kept.answers, 'kept': kept.exact_match}
    if reset:
        lost, _ = evaluator.evaluate(trained.params, corpus, 'test', reset=True)
        score['reset'] = lost.exact_match
    return score


def _mqar(trained: Trained, evaluator: Evaluator, size: str, row: rows.Row) -> dict[str, Any]:
    return {
        f'{length} x {pairs}': _score(trained, evaluator, True, sizes=((length, pairs),))
        for length, pairs in PAIRS[size]
    }


def _recall(trained: Trained, evaluator: Evaluator, size: str, row: rows.Row) -> dict[str, Any]:
    found: dict[str, Any] = {}
    lanes = trained.experiment.config.evaluate.num_lanes
    for kind in MIXED:
        by_distance = found.setdefault(kind, {})
        for distance in NEAR[size]:
            score = _score(trained, evaluator, True, kind=kind, distances=(distance,))
            by_distance[str(distance)] = score
        for distance in FAR if not row.reach and kind != 'copy' else ():
            few = dict(kind=kind, distances=(distance,), eval_documents=min(FAR_DOCUMENTS, lanes))
            if score['kept'] < ANSWERS:
                score = {'answers': 0, 'kept': GUESSED}
            else:
                score = _score(trained, evaluator, False, **few)
            by_distance[str(distance)] = score
    return found


def _text(trained: Trained, evaluator: Evaluator, size: str, row: rows.Row) -> dict[str, Any]:
    config = trained.experiment.config
    corpus = trained.experiment.corpus('test')
    most = config.evaluate.max_test_segments
    results = [
        evaluator.evaluate(trained.params, corpus, 'test', reset=reset, max_segments=most)[0]
        for reset in (False, True)
    ]
    kept, reset = (result.bits_per_byte for result in results)
    return {'bits/byte': {'kept': kept, 'reset': reset, 'protocol': results[0].protocol}}


def floors(column: Column, config: Any, size: str) -> dict[str, Any]:
    """What rules without a learned memory score: {table: {size: {rule: score}}}."""
    if column.task not in TASKS:
        experiment = Experiment(config, None, None)
        corpus = experiment.corpus('test')
        found = rules.measure(config, 'test', corpus, lambda: experiment.corpus('train'))
        scores = {rule: score['bits_per_byte'] for rule, score in found.scores.items()}
        return {column.name: {'bits/byte': scores}}
    tested = [
        ('mqar', f'{length} x {pairs}', dict(sizes=((length, pairs),)))
        for length, pairs in PAIRS[size]
    ]
    if column.task == 'recall':
        tested = [
            (kind, str(distance), dict(kind=kind, distances=(distance,)))
            for kind in MIXED
            for distance in NEAR[size]
        ]
    result: dict[str, Any] = {}
    for name, label, task in tested:
        asked = config.copy_and_resolve_references()
        asked.data.task.update(task)
        corpus = TASKS[asked.data.source].corpus(asked.data.task.to_dict(), 'test', asked.data.seed)
        scores = rules.measure(asked, 'test', corpus, lambda: None).scores
        by_size = result.setdefault(name, {})
        by_size[label] = {
            rule: score['exact_match'] for rule, score in scores.items() if 'more' not in rule
        }
    return result
