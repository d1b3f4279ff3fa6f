"""Trains a row on the task of a column and scores it: the numbers of its cells."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from flax.serialization import msgpack_restore, msgpack_serialize

from experiments import provenance
from experiments.leaderboard import rows
from experiments.leaderboard.columns import ABOVE, ANSWERS, FAR, Asked, Column
from experiments.short_trainings import Trained, Trainer
from experiments.speed.bench import bytes_per_lane
from longmem_jax import files
from longmem_jax.config import overrides
from longmem_jax.data import load
from longmem_jax.errors import UsageError
from longmem_jax.evaluation import floors as rules
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment

# Share of right answers that ends a training, over this number of steps.
ENOUGH, RECENT = 0.995, 100
KEPT = ('params', 'steps', 'decided', 'lines')  # of a `Trained`


def config_of(
    row: rows.Row, column: Column, size: str, flags: list[str], novels: str, folder: Path
) -> Any:
    """The configuration of a cell: that of its command, with the flags of the row.

    A vocabulary that the column needs is learned once, in `folder`.
    """
    config = rows.config_of(row.name, size, column.task)
    if column.name == 'novels':
        flags = [*flags, f'--config.data.path={novels}']
    overrides.apply(config, overrides.split_arguments([*row.flags, *flags])[1])
    tokenizer = config.data.tokenizer
    if tokenizer.kind == 'bpe' and not tokenizer.path:
        folder.mkdir(parents=True, exist_ok=True)
        load.make_tokenizer(config.data, folder)
        tokenizer.path = str(folder / f'tokenizer.bpe.{tokenizer.size}.json')
    return config


def scores(
    row: rows.Row,
    column: Column,
    config: Any,
    size: str,
    seeds: list[int],
    folder: Path,
    given: list[str],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Trains and scores a row with several seeds; compiles once.

    `folder` has the parameters of a seed whose surface is begun; it is taken up from there. `given`:
    the settings of the command, which must be those it was begun with.

    Yields:
      A seed and its cell: `scores`, steps, `decided`, `parameters`, `positions`, `state_bytes`,
      `flags`, `seconds`. `scores` is {table: {size: {'kept', 'reset', ...}}}.
    """
    trainer = Trainer(config)
    answers = column.scored == ANSWERS
    for seed in seeds:
        began, file = time.monotonic(), folder / f'{seed}.msgpack'
        if file.exists():
            begun = _begun(file, given)
        else:
            trained = trainer.train(seed, ENOUGH if answers else None, RECENT)
            begun = {name: jax.device_get(getattr(trained, name)) for name in KEPT}
            begun |= {'scores': {}, 'seconds': 0.0, 'given': given}
        trained = Trained(trainer.seeded(seed), *(begun[name] for name in KEPT))
        if answers:
            asked = column.asked(config, size)
            for _ in score_all(asked, trained, trainer.evaluator, begun['scores']):
                seconds = begun['seconds'] + time.monotonic() - began
                folder.mkdir(parents=True, exist_ok=True)
                files.write(file, msgpack_serialize(begun | {'seconds': seconds}))
            found, begun['scores'] = begun['scores'], {}  # the file has lost the order
            for test in asked:
                of_table = begun['scores'].setdefault(test.table, {})
                of_table[test.size] = found[test.table][test.size]
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
                'parameters': sum(leaf.size for leaf in jax.tree.leaves(trained.params)),
                'positions': row.positions,
                'flags': row.flags,
                'state_bytes': bytes_per_lane(trained.experiment.evaluation_model, trained.params),
                'seconds': begun['seconds'] + time.monotonic() - began,
            },
        )
        file.unlink(missing_ok=True)


def _begun(file: Path, given: list[str]) -> dict[str, Any]:
    """What is kept of a seed that was begun."""
    try:
        begun = msgpack_restore(file.read_bytes())
    except ValueError as error:
        raise UsageError(f'{file}: is damaged ({error}); delete it') from None
    provenance.require_same(file, begun.get('given', []), given)
    return begun


def _score(trained: Trained, evaluator: Evaluator, test: Asked) -> dict[str, Any]:
    """Right answers on the documents of a test."""
    data = trained.experiment.config.copy_and_resolve_references().data
    data.task.update(test.task)
    corpus = load.load(data, 'test', trained.experiment.tokenizer)
    measured = 'accuracy' if test.parts else 'exact_match'
    kept, _ = evaluator.evaluate(trained.params, corpus, 'test')
    score = {'answers': kept.answers, 'kept': getattr(kept, measured)}
    if test.reset:
        lost, _ = evaluator.evaluate(trained.params, corpus, 'test', reset=True)
        score['reset'] = getattr(lost, measured)
    return score


def score_all(
    asked: list[Asked], trained: Trained, evaluator: Evaluator, found: dict[str, Any]
) -> Iterator[None]:
    """Adds to `found` the tests that it does not have: {table: {size: score}}; yields after each."""
    smaller: dict[str, dict[str, Any]] = {}  # by table
    for test in asked:
        by_size = found.setdefault(test.table, {})
        if test.size not in by_size:
            before = smaller.get(test.table)
            if test.chance is not None and before and before['kept'] < test.chance + ABOVE:
                by_size[test.size] = {'answers': 0, 'kept': before['kept']}
            else:
                by_size[test.size] = _score(trained, evaluator, test)
            print(
                f'{test.table}, {test.size}: {100 * by_size[test.size]["kept"]:.0f} %', flush=True
            )
            yield
        smaller[test.table] = by_size[test.size]


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
    result: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    for test in column.asked(config, size):
        if max(test.task.get('lengths', (0,))) >= FAR:  # they score as at shorter lengths
            continue
        # Rules see the question, its segment or everything, which is alike at any distance.
        alike = str(
            {n: v for n, v in test.task.items() if n not in ('distances', 'eval_documents')}
        )
        if alike not in seen:
            asked = config.copy_and_resolve_references()
            asked.data.task.update(test.task | dict(eval_documents=config.data.task.eval_documents))
            corpus = load.load(asked.data, 'test', load.make_tokenizer(asked.data, None))
            scores = rules.measure(asked, 'test', corpus, lambda: None).scores
            measured = 'accuracy' if test.parts else 'exact_match'
            seen[alike] = {r: s[measured] for r, s in scores.items() if 'more' not in r}
        result.setdefault(test.table, {})[test.size] = seen[alike]
    return result
