"""Conversations about a document (CMU-DoG), by the host with and without memories: five metrics.

The documents are cut to the facts and the introduction of a movie, on average 563 tokens of the host,
and the memories hold 567 tokens: no more is affordable here.
"""

import collections
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

from experiments import compare, floors, markdown, provenance
from experiments.hosts import scores
from experiments.options import seed_flags
from longmem_jax.commands import by_source
from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.experiment import Experiment
from longmem_jax.hosts.data.cmu_dog import SCENES, read
from longmem_jax.hosts.evaluation.overlap import overlap
from longmem_jax.reporting.progress import Progress

CONFIG = 'configs/cmu_dog.py'
SEGMENT = 63  # the largest multiple of the rate of compression, 3, that the host reads
WINDOW = 9 * SEGMENT  # tokens: every memory below is made to hold this many
UNTUNED = 'host, not tuned'
SHOWN = {
    'f1': 'F1', 'rouge1': 'ROUGE-1', 'rougeL': 'ROUGE-L', 'meteor': 'METEOR',
    'meteor_exact_stem': 'METEOR, exact and stem',
}  # fmt: skip


class Row(NamedTuple):
    """A row of the table: variants of the config, flags, and its share of the steps."""

    variants: str
    flags: tuple[str, ...] = ()
    share: float = 1.0


# The old signal is contracted to tau at every write: the paper's document takes 2 writes, ours 9.
CONTINUOUS = ('--config.model.infinity_former.tau=0.9',)
NOTHING = 'no document, as many tokens'
ROWS = {
    # Without the document, conversations are 58 % of the text.
    'no document, as many conversations': Row('memory=local,no_document', share=0.58),
    NOTHING: Row('memory=local,no_document'),
    'document, its input alone': Row('memory=local'),
    'document in context': Row(
        'memory=transformer_xl', (f'--config.model.transformer_xl.memory_length={WINDOW}',)
    ),
    'compressive': Row(
        'memory=compressive', (f'--config.model.compressive.compressed_length={WINDOW // 3}',)
    ),
    'infinity_former': Row('memory=infinity_former', CONTINUOUS),
    'infinity_former, sticky': Row('memory=infinity_former,sticky=sampled', CONTINUOUS),
}


def shorten(source: Path, output: Path) -> Path:
    """Writes a CMU-DoG folder whose documents have no scenes and no criticism; returns it."""
    folder, documents = output / 'dialogue/data', sorted((source / 'WikiData').glob('*.json'))
    if not (folder / 'Conversations').exists():
        (folder / 'WikiData').mkdir(parents=True, exist_ok=True)
        for file in documents:
            movie = json.loads(file.read_text()) | dict.fromkeys(SCENES, '')
            movie['0']['critical_response'] = []
            (folder / 'WikiData' / file.name).write_text(json.dumps(movie))
        (folder / 'Conversations').symlink_to(source.resolve() / 'Conversations')
    return folder


def flags(options: Any, row: Row) -> list[str]:
    """Flags of the training of a row."""
    steps = max(round(row.share * options.dialogue_steps), 1)
    return [
        f'--config.data.path={options.output / "dialogue/data"}',
        f'--config.train.num_steps={steps}', f'--config.train.evaluate_every={steps}',
        '--config.train.log_every=10', '--config.evaluate.max_segments=16',
        '--config.evaluate.max_test_segments=80', *row.flags,
        *options.flags,
    ]  # fmt: skip


def variants(options: Any, row: Row) -> str:
    """What follows `--config=configs/cmu_dog.py:`."""
    return f'tiny,path={options.output / "exported"},segment={SEGMENT},{row.variants}'


def folder(output: Path, label: str) -> Path:
    """Where the seeds of a row are."""
    return output / 'dialogue' / label.replace(', ', '-').replace(' ', '_')


def run(options: Any) -> None:
    """Fine-tunes the host on conversations, row by row; then what no training is needed for."""
    shorten(options.dialogues, options.output)
    for label, row in ROWS.items():
        trained, given = (
            folder(options.output, label),
            (variants(options, row), flags(options, row)),
        )
        for seed, numbers in compare.every_seed(CONFIG, *given, trained, options.seeds):
            print(f'dialogue, {label}, seed {seed}: {numbers["test"]["loss"]:.3f}', flush=True)
        whole_test(trained, options.seeds)
    plain, own = ROWS[NOTHING], folder(options.output, NOTHING) / str(options.seeds[0])
    untuned(own, folder(options.output, UNTUNED))
    fixed(own, options.seeds, options.output / 'dialogue/fixed.json')
    given = [
        *seed_flags(options.seeds[0]),
        *flags(options, plain),
        '--config.evaluate.max_test_segments=0',
    ]
    floors.measure(CONFIG, variants(options, plain), given, options.output / 'dialogue/floors')


def whole_test(trained: Path, seeds: list[int]) -> None:
    """Scores all utterances of test, the same with documents and without: utterances.json."""
    evaluator = None
    for seed, done, run in scores.missing(trained, seeds, 'utterances.json'):
        evaluator = evaluator or scores.evaluator_of(run)
        params = run.restore_parameters()[0]
        result, _ = evaluator.evaluate(params, run.corpus('test'), 'test')
        provenance.save(done, result.as_json(), [seed])


def untuned(trained: Path, output: Path) -> None:
    """Scores the host that a run began with, as that run was: untuned.json."""
    if (output / 'untuned.json').exists():
        return
    output.mkdir(parents=True, exist_ok=True)
    run = scores.experiment_of(trained)
    host, progress = Experiment(run.config, output, run.mesh), Progress(0, log_every=0)
    params, _ = newest_parameters(host, progress.say)
    evaluator = scores.evaluator_of(host)
    result, _ = evaluator.evaluate(params, host.corpus('test'), 'test')
    found = by_source.score(host, params, 'test', progress)
    seeds = [run.config.train.seed]
    provenance.save(output / 'untuned.json', {'test': result.as_json(), **found}, seeds)


def fixed(trained: Path, seeds: list[int], output: Path) -> None:
    """Scores responses that no model writes, for the utterances that a run wrote: a JSON file."""
    if output.exists():
        return
    run = scores.experiment_of(trained)
    said = [text for each in read(run.config.data.path, 'train') for _, text in each.utterances]
    lines = (trained / 'responses.test.jsonl').read_text().splitlines()
    references = [json.loads(line)['reference'] for line in lines]
    ((most, count),) = collections.Counter(said).most_common(1)
    drawn = [random.Random(seed).choices(said, k=len(references)) for seed in seeds]
    found = {
        f'most frequent utterance ("{most}", {count} times)': [[most] * len(references)],
        'random utterances of the training set': drawn,
    }
    found = {name: [overlap(references, each) for each in rows] for name, rows in found.items()}
    provenance.save(output, {'responses': found}, seeds)


def table(output: Path) -> str:
    """Perplexity of utterances, what a reset of the memory costs, and four metrics of responses."""
    rows: dict[str, list[list[float]]] = {}
    named = {name for label in ROWS for name, values in _metrics(output, label).items() if values}
    shown = {name: text for name, text in SHOWN.items() if name in named}
    for label in ROWS:
        if whole := _seeds(output, label, 'utterances'):
            numbers, told = _seeds(output, label, 'numbers'), _metrics(output, label)
            rows[label] = [
                [seed['perplexity'] for seed in whole],
                # Of the same tokens: both stop after this many segments.
                [seed['reset']['perplexity'] - seed['test']['perplexity'] for seed in numbers],
                *(told.get(name, []) for name in shown),
            ]
    if not rows:
        return ''
    before = provenance.saved(folder(output, UNTUNED) / 'untuned.json')
    if before:
        told = [before['dialogue']]
        rows[UNTUNED] = [[before['test']['perplexity']], [], *_columns(told, shown)]
    written = provenance.saved(output / 'dialogue/fixed.json') or {'responses': {}}
    for label, told in written['responses'].items():
        rows[label] = [[], [], *_columns(told, shown)]
    lines = [
        [label, *(markdown.span(values, 2) if values else '' for values in columns)]
        for label, columns in rows.items()
    ]
    text = markdown.table(['', 'perplexity', 'reset costs', *shown.values()], lines)
    counted = provenance.saved(output / 'dialogue/floors/floors.json')
    return f'{text}\n\n{floors.table(counted)}' if counted else text


def _seeds(output: Path, label: str, name: str) -> list[Any]:
    """What a file of a row has, seed by seed."""
    return [provenance.saved(path) for path in sorted(folder(output, label).glob(f'*/{name}.json'))]


def _metrics(output: Path, label: str) -> dict[str, list[float]]:
    """Metric of responses to its values, seed by seed."""
    found = _seeds(output, label, 'dialogue.test')
    return dict(zip(SHOWN, _columns(found, SHOWN), strict=True)) if found else {}


def _columns(found: list[dict[str, Any]], shown: dict[str, str]) -> list[list[float]]:
    return [[seed[name] for seed in found if name in seed] for name in shown]
