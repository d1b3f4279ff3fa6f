"""Resumes a run with a different number of lanes: what is kept, and what is reset.

Parameters, optimizer and step do not depend on lanes. Memories and positions in the data do, and those
of eight lanes cannot be used for four. So memories are reset, and the lanes begin with documents that
no lane had begun. Where there are fewer documents than lanes, they begin at equal distances in them.
"""

import dataclasses
import json
from collections.abc import Callable

import numpy as np

from longmem_jax.data.corpus import AnyCorpus
from longmem_jax.data.lanes import Cursor
from longmem_jax.data.order import circles
from longmem_jax.devices import initial, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.training.identity import MODEL
from longmem_jax.training.step import TrainState

FIELD = 'config.train.num_lanes'


def saved_lanes(experiment: Experiment) -> tuple[int, int] | None:
    """Lanes and step of the newest checkpoint of the workdir; None if that is not known.

    None too if its attention is another: lanes are then the least that differs, and restoring tells all.
    """
    steps = experiment.checkpoint_steps()
    if not steps:
        return None
    path = experiment.workdir / 'checkpoints' / str(steps[-1]) / 'identity' / 'metadata'
    try:
        saved = json.loads(path.read_bytes())
        lanes, attention = saved[FIELD], saved[MODEL]['attention']
    except (OSError, ValueError, TypeError, KeyError):  # restoring will tell
        return None
    if list(experiment.config.model.attention) != attention:
        return None
    return (lanes, steps[-1]) if type(lanes) is int and lanes > 0 else None


def next_document(document: np.ndarray, offset: np.ndarray, num_lanes: int) -> int:
    """Where all of `num_lanes` lanes can begin, so that they read no document that was begun.

    `document` and `offset`, int [old lanes], are the cursor of a checkpoint; see
    `data.lanes.Cursor`. Returns the index of a document in the sequence of every lane.
    """
    old = len(document)
    ends = np.arange(old) + (document.astype(np.int64) + (offset > 0)) * old
    # One lane has begun nothing yet: its end is its own number.
    begun = int((ends - old).max()) + 1
    return -(-max(begun, 0) // num_lanes)


def restarted(
    experiment: Experiment, corpus: AnyCorpus, report: Callable[[str], None]
) -> tuple[TrainState, int] | None:
    """The newest state with other lanes, and its step.

    None if the number of lanes is that of the run. `report` gets lines that say what is kept.

    Raises:
      UsageError: the number differs, and `config.train.restart_lanes` does not allow it.
    """
    train, saved = experiment.config.train, saved_lanes(experiment)
    if saved is None or saved[0] == train.num_lanes:
        return None
    if not train.restart_lanes:
        raise UsageError(
            f'{FIELD} = {train.num_lanes}: the checkpoint of step {saved[1]:,} in {experiment.workdir} '
            f'has {saved[0]} lanes, each with its own memory and position in the data. Set '
            f'--{FIELD}={saved[0]}; or --config.train.restart_lanes=True, which keeps parameters, '
            'optimizer and step, resets the memories and begins new documents in the lanes.'
        )
    config = experiment.config.copy_and_resolve_references()
    config.train.num_lanes = saved[0]
    before = dataclasses.replace(experiment, config=config)
    saver = before.checkpointer(report, before.going_on(corpus))
    try:
        found = saver.restore(_everywhere(before.abstract_state, experiment))
    finally:
        saver.close()
    if found is None:
        return None
    old, step = found
    read, offset = (
        np.asarray(leaf.addressable_data(0)) for leaf in (old.cursor.document, old.cursor.offset)
    )
    again = circles(corpus, train.num_lanes)
    document = 0 if again else next_document(read, offset, train.num_lanes)

    def make() -> TrainState:
        fresh = experiment.make_state()
        first = Cursor(document=fresh.cursor.document + document, offset=fresh.cursor.offset)
        return fresh.replace(cursor=first)

    fresh = initial.arrays(make, experiment.state_shardings)
    report(
        f'{saved[0]} lanes in the checkpoint of step {step:,}, {train.num_lanes} now: parameters, '
        'optimizer and step are kept; memories are reset, and the lanes begin '
        + (
            f'at equal distances in the {len(corpus)} training documents.'
            if again
            else f'with documents that no lane had begun (number {document:,} of each lane).'
        )
    )
    return old.replace(memory=fresh.memory, cursor=fresh.cursor), step


def _everywhere(state: TrainState, experiment: Experiment) -> TrainState:
    """An abstract state with the lanes on every device: the old ones need not divide over them."""
    lanes = (state.memory, state.cursor)
    memory, cursor = sharding.abstract(lanes, sharding.replicated(experiment.mesh))
    return state.replace(memory=memory, cursor=cursor)
