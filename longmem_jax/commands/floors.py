"""`--mode=floors`: what rules without a learned memory score; needs no checkpoint."""

import jax

from longmem_jax.data.documents import require_split
from longmem_jax.evaluation import floors
from longmem_jax.evaluation.tables import show_floors
from longmem_jax.experiment import Experiment
from longmem_jax.reporting.progress import Progress


def measure(experiment: Experiment, split: str = 'test') -> floors.Floors:
    """Scores n-grams or a task's rules on what an evaluation of a split scores.

    Prints and saves the table.

    Raises:
      UsageError: an unknown split, one whose questions no rule answers, or a source without floors.
    """
    require_split(split)
    found = floors.measure(
        experiment.config, split, experiment.corpus(split), lambda: experiment.corpus('train')
    )
    progress = Progress(0, log_every=0)
    show_floors(progress, found)
    if jax.process_index() == 0:
        progress.say(f'floors: {floors.save(found, experiment.workdir)}')
    return found


def show_beside(progress: Progress, experiment: Experiment, split: str) -> None:
    """Prints the floors of the workdir if they are of what was evaluated; else how to get them.

    Nothing for a source that has none.
    """
    if not floors.has_floors(experiment.config.data):
        return
    found = floors.saved(experiment.workdir)
    if found is None:
        progress.say('What rules without a learned memory score: --mode=floors')
    elif found.settings == floors.settings_of(experiment.config, split):
        show_floors(progress, found)
    else:
        progress.say(
            f'{floors.FILE} is for other settings ({found.protocol}); run --mode=floors '
            f'--split={split} for these.'
        )
