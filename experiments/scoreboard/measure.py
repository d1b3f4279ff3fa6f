"""Trains a row on the task of a column and scores it: the numbers of its cells."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from flax.serialization import msgpack_restore, msgpack_serialize

from experiments.scoreboard import rows
from experiments.scoreboard.cells import ANSWERS, KEYS, Column
from experiments.short_trainings import Trained, Trainer
from experiments.speed.bench import state_bytes
from longmem_jax import files
from longmem_jax.config import overrides
from longmem_jax.data.tasks.registry import TASKS
from longmem_jax.evaluation import floors as rules
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment

ENOUGH, RECENT = (
    0.995,
    100,
)  # share of right answers that ends a training, over this number of steps
KEPT = ('params', 'steps', 'decided', 'lines')  # of a `Trained`
# Tested beyond what is trained, by size of the backbone.
PAIRS = {
    'tiny': ((32, 4), (64, 8), (128, 16), (256, 32), (512, 60)),
    '': ((128, 8), (256, 16), (512, 32), (1024, 64), (2048, 128)),
}
# The surface: 96 answers or more near the list, one document per lane from `FAR` on, few at the end.
DISTANCES = (64, 256, 1024, 4096, 16_384, 65_536, 1_048_576)
FAR, FARTHEST, FEW, LEAST_ANSWERS = 16_384, 1_048_576, 8, 96
ABOVE = 0.05  # what a score must have more than who names any value, or longer ones are not asked


def config_of(row: rows.Row, column: Column, size: str, flags: list[str], novels: str) -> Any:
    """The configuration of a cell: that of its command, with the flags of the row."""
    config = rows.config_of(row.name, size, column.task)
    if column.name == 'novels':
        flags = [*flags, f'--config.data.path={novels}']
    _, changes = overrides.split_arguments([*row.flags, *flags])
    overrides.apply(config, changes)
    return config


def scores(
    row: rows.Row, column: Column, config: Any, size: str, seeds: list[int], folder: Path
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Trains and scores a row with several seeds; compiles once.

    `folder` has the parameters of a seed whose surface is begun; it is taken up from there.

    Yields:
      A seed and its cell: `scores`, steps, `decided`, `parameters`, `positions`, `state_bytes`,
      `flags`, `seconds`. `scores` is {table: {size: {'kept', 'reset', ...}}}.
    """
    trainer = Trainer(config)
    answers = column.scored == ANSWERS
    for seed in seeds:
        began, file = time.monotonic(), folder / f'{seed}.msgpack'
        if file.exists():
            begun = msgpack_restore(file.read_bytes())
        else:
            trained = trainer.train(seed, ENOUGH if answers else None, RECENT)
            begun = {name: jax.device_get(getattr(trained, name)) for name in KEPT}
            begun |= {'scores': {}, 'seconds': 0.0}
        trained = Trained(trainer.seeded(seed), *(begun[name] for name in KEPT))
        if column.name == 'surface':
            for _ in _surface(trained, trainer.evaluator, begun['scores']):
                seconds = begun['seconds'] + time.monotonic() - began
                folder.mkdir(parents=True, exist_ok=True)
                files.write(file, msgpack_serialize(begun | {'seconds': seconds}))
            begun['scores'] = {  # the file has lost the order
                str(keys): {str(d): begun['scores'][str(keys)][str(d)] for d in DISTANCES}
                for keys in KEYS
            }
        elif column.name == 'mqar':
            begun['scores'] = {'mqar': _mqar(trained, trainer.evaluator, size)}
        else:
            begun['scores'] = {column.name: _text(trained, trainer.evaluator)}
        yield (
            seed,
            {
                'scores': begun['scores'],
                'steps': trained.steps,
                'decided': trained.decided,
                'training': [
                    line['accuracy'] if answers else line['loss'] for line in trained.lines
                ],
                'parameters': row.parameters,
                'positions': row.positions,
                'flags': row.flags,
                'state_bytes': _state_bytes(trained),
                'seconds': begun['seconds'] + time.monotonic() - began,
            },
        )
        file.unlink(missing_ok=True)


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


def _mqar(trained: Trained, evaluator: Evaluator, size: str) -> dict[str, Any]:
    return {
        f'{length} x {pairs}': _score(trained, evaluator, True, sizes=((length, pairs),))
        for length, pairs in PAIRS[size]
    }


def document(keys: int, distance: int) -> dict[str, Any]:
    """Fields of the task for documents that list `keys`, wait for `distance` tokens and ask for all."""
    return dict(sizes=((4 * keys, keys),), distances=(distance,))


def _surface(trained: Trained, evaluator: Evaluator, found: dict[str, Any]) -> Iterator[None]:
    """Adds to `found` what it does not have: {keys: {distance: score}}; yields after each.

    Longer distances are not asked where a shorter one is near the score of who has seen all values of
    the document, or of who guesses a single one. They count as that one.
    """
    config = trained.experiment.config
    lanes, words = config.evaluate.num_lanes, config.data.task.num_words
    for keys in KEYS:
        by_distance = found.setdefault(str(keys), {})
        chance = 1 / keys if keys > 1 else 2 / words
        score = {'answers': 0, 'kept': 1.0}
        for distance in DISTANCES:
            if str(distance) in by_distance:
                score = by_distance[str(distance)]
                continue
            if score['kept'] < chance + ABOVE:
                score = {'answers': 0, 'kept': score['kept']}
            else:
                count = max(lanes, LEAST_ANSWERS // keys) if distance < FAR else lanes
                count = min(count, FEW) if distance >= FARTHEST else count
                task = document(keys, distance) | dict(eval_documents=count)
                score = _score(trained, evaluator, False, **task)
            by_distance[str(distance)] = score
            print(f'{keys} keys, {distance} tokens: {100 * score["kept"]:.0f} %', flush=True)
            yield


def _text(trained: Trained, evaluator: Evaluator) -> dict[str, Any]:
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
    if column.scored != ANSWERS:
        experiment = Experiment(config, None, None)
        corpus = experiment.corpus('test')
        found = rules.measure(config, 'test', corpus, lambda: experiment.corpus('train'))
        scores = {rule: score['bits_per_byte'] for rule, score in found.scores.items()}
        return {column.name: {'bits/byte': scores}}
    tested = [
        ('mqar', [f'{length} x {pairs}'], dict(sizes=((length, pairs),)))
        for length, pairs in PAIRS[size]
    ]
    if column.name == 'surface':
        # Rules see the question, its segment or everything, which is alike at any distance.
        labels = [str(distance) for distance in DISTANCES]
        tested = [(str(keys), labels, document(keys, DISTANCES[0])) for keys in KEYS]
    result: dict[str, Any] = {}
    for name, labels, task in tested:
        asked = config.copy_and_resolve_references()
        asked.data.task.update(task)
        corpus = TASKS[asked.data.source].corpus(asked.data.task.to_dict(), 'test', asked.data.seed)
        scores = rules.measure(asked, 'test', corpus, lambda: None).scores
        shown = {rule: s['exact_match'] for rule, s in scores.items() if 'more' not in rule}
        result.setdefault(name, {}).update(dict.fromkeys(labels, shown))
    return result
