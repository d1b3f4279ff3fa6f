"""What a checkpoint belongs to: model, tokenizer, data, settings, run and step, stored with it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from longmem_jax.config import earlier
from longmem_jax.errors import UsageError
from longmem_jax.problems import differing
from longmem_jax.training.optimizer import GIVEN

# Fields of the stored identity that are compared one by one.
DATA, SETTINGS, STEP, RUN = OWN = ('data', 'settings', 'step', 'run')
MODEL = 'config.model'
RUN_FILE = 'run.json'  # which run a folder of checkpoints is of
BACK = 'back'  # there: to which step the run went back, and with which settings
BEST = 'best'  # there: the step of the best checkpoint
NO_NUMBER = ('kernels', 'remat', 'loss_blocks')  # fields of `config.model` that change none


@dataclasses.dataclass(frozen=True)
class GoingOn:
    """What else counts where training continues from a checkpoint, and not where it is only read.

    Attributes:
      same: by name, what must be the same.
      data: 'content' and 'place' of the data. Another content is refused; another place is reported.
      accept_other_data: go on with another content, from its first document.
      settings: what may differ, nested; differences are reported.
    """

    same: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    accept_other_data: bool = False
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def stored(self) -> dict[str, Any]:
        """The fields that a checkpoint keeps of this."""
        kept = {DATA: self.data, SETTINGS: self.settings}
        return self.same | {name: value for name, value in kept.items() if value}


def settings_of(config: Any, **sections: Any) -> dict[str, Any]:
    """The fields of a configuration that may differ where training continues, as `GoingOn.settings`.

    `sections` are those of a subject, by the name of its section.
    """
    left_out = ('num_lanes', 'log_every', 'evaluate_every', 'max_bad_steps')
    train = {name: value for name, value in config.train.to_dict().items() if name not in left_out}
    optimizer = {
        name: value for name, value in config.optimizer.to_dict().items() if name != 'name'
    }
    own = {'train': train, 'optimizer': optimizer, 'data': {'seed': config.data.seed}}
    return {'config': own | sections}


def model_of(config: Any) -> dict[str, Any]:
    """`config.model` as a checkpoint keeps it: without what changes no number."""
    model = config.model.to_dict()
    return {name: value for name, value in model.items() if name not in NO_NUMBER}


def run_of(directory: Path) -> str | None:
    """The run that a folder of checkpoints is of; None if that is not known."""
    return about(directory).get(RUN)


def about(directory: Path) -> dict[str, Any]:
    """What `run.json` says of a folder of checkpoints; {} if it is not there, or says nothing.

    Raises:
      UsageError: it cannot be read just now, so that the run is not known.
    """
    path = directory / RUN_FILE
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return {}
    except OSError as error:
        raise UsageError(
            f'{path}: cannot be read ({error.strerror}), so it is not known of which run the folder is. '
            'Correct this and run the same command.'
        ) from error
    return found if isinstance(found, dict) else {}


def plain(value: Any) -> Any:
    """A value as it comes back from JSON: lists for tuples."""
    return json.loads(json.dumps(value))


def differing_fields(saved: Any, given: Any) -> list[str]:
    """A line `field: value in the checkpoint, value given` for every leaf that differs."""
    return [
        f'{field}: {before!r} in the checkpoint, {now!r} given'
        for field, before, now in differing(saved, given)
    ]


def in_both(saved: Any, given: Any) -> Any:
    """`saved` without the fields that `given` lacks, which another version may have."""
    if not isinstance(saved, dict) or not isinstance(given, dict):
        return saved
    return {name: in_both(saved[name], given[name]) for name in saved if name in given}


def require_format(saved: dict[str, Any], given: dict[str, Any], where: str) -> None:
    """Raises `UsageError` if a checkpoint has other parameter names; `where` names it."""
    before, now = saved.get('format', 1), given.get('format', 1)
    if before != now:
        age = 'an earlier' if before < now else 'a later'
        raise UsageError(
            f'{where} was made by {age} version, whose parameters have other names (format {before}, '
            f'this version has {now}). Train again in another --workdir, or use that version.'
        )


def require_same(
    saved: dict[str, Any],
    given: dict[str, Any],
    going_on: GoingOn | None,
    where: str,
    otherwise: str,
) -> None:
    """Raises `UsageError` with the fields in which a checkpoint differs from what must be the same
    wherever it is used (`given`), and where training continues from it (`going_on`; None = it is only
    read).
    """
    require_format(saved, given, where)
    given = given | (going_on.same if going_on else {})
    # What only training needs is stored as well, under names of the configuration.
    of_training = () if going_on else ('config.train.', 'config.optimizer.')
    unread = [name for name in saved if name not in given and name.startswith(of_training)]
    saved = {name: value for name, value in saved.items() if name not in (*OWN, *unread)}
    if MODEL in saved and MODEL in given:
        saved[MODEL] = plain(earlier.completed(saved[MODEL], given[MODEL]))
    fields = differing_fields(saved, given)
    if saved.get('config.optimizer.name') == GIVEN != given.get('config.optimizer.name'):
        otherwise += (
            ' It was trained with an object of optax, which is to be given again: '
            'longmem_jax.train(..., optimizer=...).'
        )
    if not going_on and any(field.startswith(f'{MODEL}.') for field in fields):
        otherwise += (
            ' To read texts with other settings than in training: --config.evaluate.model.FIELD=VALUE, '
            'for fields of which --mode=list says that they may differ.'
        )
    if fields:
        lines = '\n  '.join(fields)
        raise UsageError(f'{where} belongs to another run:\n  {lines}\n{otherwise}')


def other_data(saved: dict[str, Any], going_on: GoingOn, where: str) -> list[str]:
    """What differs in the content of the data; raises `UsageError` unless that is accepted."""
    if DATA not in saved or not going_on.data:
        return []
    before, now = (data['content'] for data in (saved[DATA], plain(going_on.data)))
    fields = differing_fields(in_both(before, now), in_both(now, before))
    if fields and not going_on.accept_other_data:
        fields += differing_fields(saved[DATA]['place'], going_on.data['place'])
        lines = '\n  '.join(fields)
        raise UsageError(
            f'{where} was trained on other data, or on the same in another order:\n  {lines}\nGo '
            'back to that data (an order belongs to a version of this library), or use another '
            '--workdir. To resume with the data given, from its first document, set '
            '--config.checkpoint.accept_other_data=True.'
        )
    return fields


def other_settings(saved: dict[str, Any], going_on: GoingOn) -> list[str]:
    """What differs in the settings, and where the data is."""
    fields = []
    for before, now in (
        (saved.get(SETTINGS, {}), plain(going_on.settings)),
        (saved.get(DATA, {}).get('place', {}), plain(going_on.data.get('place', {}))),
    ):
        fields += differing_fields(in_both(before, now), in_both(now, before))
    return fields
