"""BLiMP over the training of several runs, in one figure.

python -m experiments.analysis.blimp_over_training --workdirs=RUN,RUN --labels=32,256 --output=blimp.png

Each run was scored by `python -m experiments.hosts.blimp --checkpoints=all`. One line per run:
the mean accuracy of all paradigms (`--of=syntax`, or another field or phenomenon: its mean) at every
checkpoint, as the Infini-attention thesis draws it for segments of 32 to 256 tokens (its Fig. 9).
"""

import json
from pathlib import Path
from typing import Any

from absl import flags

from experiments.hosts.blimp import draw
from longmem_jax.commands import entry
from longmem_jax.errors import UsageError, unknown

OVERALL = 'overall'

if __name__ == '__main__':
    _WORKDIRS = flags.DEFINE_list('workdirs', [], 'Folders of the runs.')
    _LABELS = flags.DEFINE_list('labels', [], 'Their names in the figure; default: the folders.')
    _OF = flags.DEFINE_string('of', OVERALL, 'overall, or a field or phenomenon of BLiMP.')
    _OUTPUT = flags.DEFINE_string('output', 'blimp.png', 'The figure.')


def scores(workdir: Path, of: str = OVERALL) -> list[tuple[int, float]]:
    """(step, mean accuracy) of every checkpoint of a run that was scored.

    Args:
      workdir: folder of the run.
      of: 'overall', or the name of a field or a phenomenon.

    Raises:
      UsageError: the run was not scored, or the name is not one of these.
    """
    path = workdir / 'blimp.json'
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())['checkpoints']
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f'{path}: cannot be read ({error}); score the run first: python -m '
            f'experiments.hosts.blimp --workdir={workdir} --data=FOLDER --checkpoints=all.'
        ) from error
    found = []
    for row in rows:
        means = {OVERALL: row['overall']['paradigms'], **row['phenomenon'], **row['field']}
        if of not in means:
            raise UsageError(unknown('--of', of, sorted(means)))
        found.append((row['step'], means[of]))
    return found


def _main() -> None:
    workdirs, labels = [Path(each) for each in _WORKDIRS.value], _LABELS.value
    if not workdirs:
        raise UsageError('--workdirs= is missing: folders of runs, separated by commas.')
    labels = labels or [str(workdir) for workdir in workdirs]
    if len(set(labels)) != len(workdirs):
        raise UsageError(
            f'--labels={",".join(labels)}: {len(workdirs)} names are needed, each different.'
        )
    runs = {
        label: scores(workdir, _OF.value) for label, workdir in zip(labels, workdirs, strict=True)
    }
    for label, rows in runs.items():
        print(f'{label}: ' + ', '.join(f'{score:.2%} at {step:,}' for step, score in rows))
    draw(runs, _OF.value, Path(_OUTPUT.value))
    print(_OUTPUT.value)


if __name__ == '__main__':
    entry.run(_main)
