"""BLiMP: how often a model prefers the acceptable sentence of a minimal pair.

python -m experiments.hosts.blimp --workdir=DIR --data=blimp/data

scores the newest checkpoint of a run, or a host that was not trained yet (`configs/host.py`), on the
original files (67 paradigms, a .jsonl file each) by the sum of the log-probabilities of all tokens of a
sentence; the memory is empty before every sentence. Printed are tables by paradigm and by field;
WORKDIR/blimp.json has both, the 12 phenomena and the protocol.
`--checkpoints=all` scores all checkpoints that the run has kept (`--config.checkpoint.keep=`) and draws
WORKDIR/blimp.png, the scores over training. `--before=' '` puts a blank before every sentence, as the
BabyLM pipeline and lm-eval do; `--pairs=200` takes the first 200 pairs of every paradigm. A segment that
holds the longest sentence is enough, and the fastest: `--config.evaluate.segment_length=64`, and
`--config.evaluate.num_lanes=64`. `--config=configs/host.py:path=FOLDER,memory=none` with a new workdir
scores a pretrained model as it is.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments import provenance
from experiments.hosts.minimal_pairs import (
    NUM_PARADIGMS,
    Paradigm,
    Preference,
    means,
    prefer,
    read_paradigms,
)
from longmem_jax.commands import entry
from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.likelihood import Likelihood
from longmem_jax.evaluation.result import memory_lengths, segment_text
from longmem_jax.experiment import Experiment
from longmem_jax.reporting import figures
from longmem_jax.reporting.progress import Progress

CHECKPOINTS = ('newest', 'all')

if __name__ == '__main__':
    _DATA = flags.DEFINE_string('data', '', 'Folder with a .jsonl file per paradigm.')
    _BEFORE = flags.DEFINE_string('before', '', 'Text before every sentence.')
    _PAIRS = flags.DEFINE_integer('pairs', 0, 'First pairs of a paradigm; 0 = all.', lower_bound=0)
    _CHECKPOINTS = flags.DEFINE_enum('checkpoints', 'newest', CHECKPOINTS, 'What is scored.')


def blimp(
    experiment: Experiment,
    data: str,
    *,
    before: str = '',
    num_pairs: int = 0,
    checkpoints: str = 'newest',
) -> list[dict[str, Any]]:
    """Scores checkpoints, prints the tables, and writes `blimp.json` and `blimp.png` to the workdir.

    Args:
      data: folder of the original files.
      before: text put before every sentence, and scored with it.
      num_pairs: the first pairs of every paradigm; 0 = all.
      checkpoints: 'newest' or 'all'.

    Returns:
      For every checkpoint, oldest first: 'step', 'overall', 'field', 'phenomenon', as in `means`, and
      'paradigm', name to its numbers.

    Raises:
      UsageError: files that are not BLiMP's, or as in `newest_parameters` and `Likelihood`.
    """
    paradigms = read_paradigms(data)
    if checkpoints not in CHECKPOINTS:
        raise UsageError(f'--checkpoints={checkpoints}: allowed are {", ".join(CHECKPOINTS)}.')
    progress = Progress(0, log_every=0)
    if len(paradigms) != NUM_PARADIGMS:
        progress.say(f'Note: {len(paradigms)} of the {NUM_PARADIGMS} paradigms are in {data}.')
    rows, results, likelihood = [], [], None
    for params, step in _parameters(experiment, checkpoints, progress):
        progress.say(f'Scoring step {step:,} of {experiment.workdir} ...')
        if likelihood is None:
            likelihood = Likelihood(
                experiment.evaluation_model,
                params,
                experiment.mesh,
                experiment.config.evaluate.num_lanes,
                progress.say,
            )
        likelihood.use(params)
        results = prefer(
            likelihood,
            experiment.tokenizer,
            experiment.conventions(),
            paradigms,
            before=before,
            num_pairs=num_pairs,
        )
        rows.append(_row(step, results))
        progress.say(f'step {step:,}: {_in_short(rows[-1])}')
    _show(progress, results, rows[-1])
    protocol = _protocol(experiment, paradigms, results, before)
    progress.say(protocol)
    path = experiment.workdir / 'blimp.json'
    seeds = [experiment.config.train.seed]
    provenance.save(path, {'protocol': protocol, 'checkpoints': rows}, seeds)
    progress.say(f'results: {path}')
    if len(rows) > 1:
        lines = {'all paradigms': [(row['step'], row['overall']['paradigms']) for row in rows]}
        for field in rows[0]['field']:
            lines[field] = [(row['step'], row['field'][field]) for row in rows]
        draw(lines, 'by field', experiment.workdir / 'blimp.png')
        progress.say(f'over training: {experiment.workdir / "blimp.png"}')
    progress.close()
    return rows


def _parameters(
    experiment: Experiment, checkpoints: str, progress: Progress
) -> Iterator[tuple[Any, int]]:
    """Parameters and step of the newest checkpoint, or of all of them, oldest first."""
    steps = experiment.checkpoint_steps() if checkpoints == 'all' else []
    if not steps:
        yield newest_parameters(experiment, progress.say)
    for step in steps:
        yield experiment.restore_parameters(step)


def _row(step: int, results: Sequence[Preference]) -> dict[str, Any]:
    """The results of a checkpoint as JSON."""
    shown = ('accuracy', 'pairs', 'ties', 'field', 'phenomenon')
    paradigms = {each.name: {name: getattr(each, name) for name in shown} for each in results}
    return {'step': step, **means(results), 'paradigm': paradigms}


def _in_short(row: dict[str, Any]) -> str:
    """The numbers by field in a line."""
    fields = ', '.join(f'{name} {value:.1%}' for name, value in row['field'].items())
    return f'{row["overall"]["paradigms"]:.1%} of the pairs right ({fields})'


def _show(progress: Progress, results: Sequence[Preference], row: dict[str, Any]) -> None:
    """Prints the tables by paradigm, a table per field, and those of the means."""
    for field in row['field']:
        progress.table(
            f'By paradigm: {field}',
            ('paradigm', 'right', 'pairs', 'ties'),
            [
                (each.name, f'{each.accuracy:.1%}', str(each.pairs), str(each.ties))
                for each in results
                if each.field == field
            ],
        )
    for kind, title in (('phenomenon', 'By phenomenon'), ('field', 'By field')):
        progress.table(
            title, (kind, 'right'), [(name, f'{value:.1%}') for name, value in row[kind].items()]
        )
    overall = row['overall']
    progress.say(
        f'mean of the paradigms {overall["paradigms"]:.2%}, mean of the phenomena '
        f'{overall["phenomena"]:.2%}'
    )


def _protocol(
    experiment: Experiment,
    paradigms: Sequence[Paradigm],
    results: Sequence[Preference],
    before: str,
) -> str:
    """What the numbers depend on, as text."""
    config = experiment.config.evaluate
    text = f' after {before!r}' if before else ''
    return (
        f'sum of log-probabilities of all tokens after the begin token{text}, memory '
        f'{memory_lengths(experiment.evaluation_model.config)} empty before every sentence, '
        f'{segment_text(config)}, {sum(each.pairs for each in results):,} pairs of '
        f'{len(paradigms)} paradigms, ties count a half'
    )


def draw(lines: dict[str, list[tuple[int, float]]], what: str, path: Path) -> None:
    """Draws accuracies over the steps of training: label to (step, accuracy) of every checkpoint.

    `what` is the label of the axis.
    """
    figure, axes = figures.one_panel(7, 4)
    for label, rows in lines.items():
        axes.plot([step for step, _ in rows], [100 * s for _, s in rows], marker='o', label=label)
    axes.axhline(50, color='gray', linestyle=':', label='chance')
    figures.label(axes, 'step', f'BLiMP ({what}), %', legend=True)
    figures.save(figure, path)


def _blimp(experiment: Experiment) -> None:
    blimp(
        experiment,
        _DATA.value,
        before=_BEFORE.value,
        num_pairs=_PAIRS.value,
        checkpoints=_CHECKPOINTS.value,
    )


if __name__ == '__main__':
    entry.command(_blimp)
