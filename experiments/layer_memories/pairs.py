"""Pairs that ARMT and recurrent memory tokens learn to keep, one pair in a segment, fewer pairs first.

python -m experiments.layer_memories.pairs --output=DIR --rows=armt,recurrent,at_once --seeds=1,2,3,4,5

The task is MQAR (Arora et al., 2023) of `configs/mqar.py:tiny` in segments of two tokens, so each pair
is a segment and each question is another. Rows:
  armt, recurrent: begin with 2 pairs, then 4, then up to 15, as the curriculum of the ARMT paper does;
  at_once: `armt` with all sizes from the beginning, and as many tokens as all stages have.
DIR/ROW/SEED.json has the shares of right answers, and is not measured again. DIR/pairs.json has those of
the rows and seeds that were asked for, and of rules without a model.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from configs import mqar
from experiments import markdown, provenance
from experiments.options import add_seeds, make_parser, some_of
from experiments.short_trainings import Trained, Trainer
from longmem_jax.data import load
from longmem_jax.evaluation import floors as rules

SEGMENT, TOKENS = 2, 2  # of a segment, and memory tokens behind it
ENOUGH, RECENT = 0.99, 100  # right answers that end a stage, of so many steps
TESTED = ((16, 2), (32, 4), (64, 8), (128, 15), (1024, 15))  # tokens of a document, and pairs


class Stage(NamedTuple):
    """Sizes of documents, (tokens, pairs), that are trained together, and for how long at most."""

    sizes: tuple[tuple[int, int], ...]
    lanes: int
    steps: int


STAGES = (
    Stage(((16, 2),), lanes=64, steps=3000),
    Stage(((16, 2), (32, 4)), lanes=64, steps=1500),
    Stage(((32, 4), (64, 8), (128, 15)), lanes=16, steps=1000),
)
ALL = tuple(dict.fromkeys(size for stage in STAGES for size in stage.sizes))


def longest(stage: Stage) -> int:
    """Tokens of the longest document of a stage."""
    return max(tokens for tokens, _ in stage.sizes)


# As many documents in a step as the first stages, without which the values are all that is learned.
AT_ONCE = Stage(ALL, 64, sum(s.lanes * s.steps * longest(s) for s in STAGES) // (64 * 128))
RATE = (
    1e-3  # chosen for ARMT with seeds from 100 on; with 3e-3 some only learn which values there are
)
ARMT = {'armt.num_tokens': TOKENS, 'armt.d_mem': 16}
ROWS = {
    'armt': ('armt', ARMT, STAGES),
    'recurrent': ('recurrent', {'memory_tokens.num_tokens': TOKENS}, STAGES),
    'at_once': ('armt', ARMT, (AT_ONCE,)),
}


def configuration(row: str, stage: Stage) -> Any:
    """Of a row in a stage; a document fits into a step."""
    memory, fields, _ = ROWS[row]
    config = mqar.get_config(f'tiny,memory={memory}')
    config.model.update_from_flattened_dict(fields)
    config.optimizer.learning_rate, config.optimizer.schedule = RATE, 'constant'
    config.data.task.sizes = stage.sizes
    config.train.segment_length = config.evaluate.segment_length = SEGMENT
    config.train.segments_per_step = longest(stage) // SEGMENT
    config.train.num_lanes, config.train.num_steps = stage.lanes, stage.steps
    return config


def tests(config: Any) -> Iterator[tuple[str, Any, Any]]:
    """Of every tested size: its name, its configuration and its documents."""
    for size in TESTED:
        asked = config.copy_and_resolve_references()
        asked.data.task.sizes = (size,)
        yield (
            f'{size[1]} pairs, {size[0]:,} tokens',
            asked,
            load.load(asked.data, 'test', load.make_tokenizer(asked.data, None)),
        )


def trained(trainers: list[Trainer], seed: int) -> tuple[list[int], Trained]:
    """Trains a seed through all stages; the steps of each, and the last."""
    begin, steps = None, []
    for trainer in trainers:
        last = trainer.train(seed, ENOUGH, RECENT, begin)
        steps.append(last.steps)
        begin = last.params
    return steps, last


def measure(trainers: list[Trainer], seed: int) -> dict[str, Any]:
    """Steps of every stage and, by size, right answers with the memory and with it reset."""
    steps, last = trained(trainers, seed)
    scores = {}
    for name, _, corpus in tests(last.experiment.config):
        kept, lost = (
            trainers[-1].evaluator.evaluate(last.params, corpus, 'test', reset=reset)[0]
            for reset in (False, True)
        )
        scores[name] = {'kept': kept.accuracy, 'reset': lost.accuracy, 'answers': kept.answers}
        print(f'seed {seed}, {name}: {100 * kept.accuracy:.1f} %', flush=True)
    return {'steps': steps, 'scores': scores}


def floors() -> dict[str, dict[str, float]]:
    """By size, what rules without a model score."""
    found = {}
    for name, asked, corpus in tests(configuration('armt', STAGES[-1])):
        scores = rules.measure(asked, 'test', corpus, lambda: None).scores
        found[name] = {rule: score['accuracy'] for rule, score in scores.items()}
    return found


def table(found: dict[str, list[dict[str, Any]]], rules_of: dict[str, dict[str, float]]) -> str:
    """A line per row, mean (minimum - maximum) over its seeds, and a line per rule, in %."""
    lines, sizes = [], list(rules_of)
    for row, cells in found.items():
        for shown, key in ((f'`{row}`', 'kept'), (f'`{row}`, memory reset', 'reset')):
            shares = ([100 * cell['scores'][size][key] for cell in cells] for size in sizes)
            lines.append([shown, str(len(cells)), *(markdown.span(each, 0) for each in shares)])
    for rule in next(iter(rules_of.values())):
        lines.append(
            [f'rule: {rule}', '', *(f'{100 * rules_of[size][rule]:.0f}' for size in sizes)]
        )
    return markdown.table(('row', 'seeds', *sizes), lines)


def main(given: list[str] | None = None) -> None:
    """Runs the command."""
    parser = make_parser(__doc__)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--rows', type=some_of(ROWS), default=list(ROWS))
    add_seeds(parser)
    options = parser.parse_args(given)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in options.rows:
        trainers: list[Trainer] = []
        found[row] = []
        for seed in options.seeds:
            path = options.output / row / f'{seed}.json'
            if not path.exists():
                trainers = trainers or [
                    Trainer(configuration(row, stage)) for stage in ROWS[row][2]
                ]
                provenance.save(path, measure(trainers, seed), [seed])
            found[row].append(json.loads(path.read_text()))
    rules_of = floors()
    rows = {
        row: dict(zip(map(str, options.seeds), cells, strict=True)) for row, cells in found.items()
    }
    provenance.save(options.output / 'pairs.json', {'rows': rows, 'rules': rules_of}, options.seeds)
    print(table(found, rules_of))


if __name__ == '__main__':
    main()
