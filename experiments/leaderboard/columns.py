"""The columns of the leaderboard: what is tested of a row that was trained on the task of a column."""

from collections.abc import Callable
from typing import Any, NamedTuple

from configs import leaderboard
from longmem_jax.data.tasks import state_tracking


class Asked(NamedTuple):
    """A test, on documents that hold more or are longer than those of the training.

    Attributes:
      table: of its column, a key of `Column.titles`.
      size: its place in the table.
      task: fields of `config.data.task` that differ.
      chance: what who knows nothing scores. Where a smaller size of the table is within `ABOVE` of it,
        larger ones are not asked, and count with what that one had. None = all are asked.
      reset: asked again with the memory reset before every segment.
      parts: what is scored is the share of right tokens, not of answers without an error.
    """

    table: str
    size: str
    task: dict[str, Any]
    chance: float | None = None
    reset: bool = False
    parts: bool = False


class Column(NamedTuple):
    """A column of the leaderboard.

    Attributes:
      name: of `--columns=NAME`, and of `configs/leaderboard.py:task=`, but for those of `task` below.
      titles: of its tables: key of its scores to words.
      scored: `BITS`, `ANSWERS` or '' (times).
      asked: the tests, for a configuration and a size of the backbone.
      not_asked: what its mark of seeds that were not asked means.
      old: its cells are shown, and no more are run.
    """

    name: str
    titles: dict[str, str]
    scored: str
    asked: Callable[[Any, str], list[Asked]] = lambda config, size: []
    not_asked: str = ''
    old: bool = False

    @property
    def task(self) -> str:
        """Of `configs/leaderboard.py:task=`."""
        return {'novels': 'text', 'speed': 'mqar', 'far': 'surface'}.get(self.name, self.name)


ANSWERS, BITS = 'right answers, %', 'bits per byte'
ABOVE = 0.05  # what a score must have more than chance, or larger sizes are not asked
# MQAR, by size of the backbone: tokens and pairs.
PAIRS = {
    'tiny': ((32, 4), (64, 8), (128, 16), (256, 32), (512, 60)),
    '': ((128, 8), (256, 16), (512, 32), (1024, 64), (2048, 128)),
}
# The surface: 96 answers or more near the list, one document per lane from `FAR` on, few at the end.
KEYS = (1, 4, 16, 64)  # of a document
DISTANCES = (64, 256, 1024, 4096, 16_384, 65_536, 1_048_576)
FAR, FARTHEST, FEW, LEAST_ANSWERS = 16_384, 1_048_576, 8, 96
FARTHER = (64, 10_485_760)  # distances that some of them can still do, at 16 keys
GUESSING = (
    'they had less than half of the answers at the distance before: they count as guessing, 10 %.'
)
NEAR_CHANCE = (
    'they were within 5 points of chance (naming any value of the document; for one key, of all) at a '
    'shorter distance: they count with what they had there.'
)


def by_pairs(config: Any, size: str) -> list[Asked]:
    """Documents of MQAR with fewer and more pairs than in training."""
    return [
        Asked('mqar', f'{length} x {pairs}', dict(sizes=((length, pairs),)), reset=True)
        for length, pairs in PAIRS[size]
    ]


def surface(config: Any, size: str) -> list[Asked]:
    """Documents that list some keys, wait for some tokens, and ask for all keys."""
    lanes, words = config.evaluate.num_lanes, config.data.task.num_words
    asked = []
    for keys in KEYS:
        chance = 1 / keys if keys > 1 else 2 / words
        for distance in DISTANCES:
            documents = max(lanes, LEAST_ANSWERS // keys) if distance < FAR else lanes
            documents = min(documents, FEW) if distance >= FARTHEST else documents
            task = dict(sizes=((4 * keys, keys),), distances=(distance,), eval_documents=documents)
            asked.append(Asked(str(keys), str(distance), task, chance))
    return asked


def far(config: Any, size: str) -> list[Asked]:
    """Documents of 16 keys, one per lane, that ask at once and after ten million tokens."""
    task = dict(sizes=((4 * 16, 16),), eval_documents=config.evaluate.num_lanes)
    return [
        Asked('far', str(distance), task | dict(distances=(distance,)), 1 / 16)
        for distance in FARTHER
    ]


def by_length(config: Any, size: str) -> list[Asked]:
    """Documents as long as the longest of training, and 4, 16, ... times as long.

    Chance is a label of BABILong's six, an element of the group in state tracking, one of the words that
    are copied, and of RULER nothing.
    """
    task, lanes, source = config.data.task, config.evaluate.num_lanes, config.data.source
    chance, parts = 1 / 6 if source == 'babilong' else 0.0, False
    if source == 'state_tracking':
        chance, parts = 1 / len(state_tracking.group(task.group)[0]), True
    if source == 'mad':
        chance, parts = 1 / (task.num_words - 2), True  # without the blank and the mark
    most = MOST_TIMES[source, size]
    asked, times = [], 1
    while times <= most:
        length = longest(task) * times
        documents = LEAST_ANSWERS if length < FAR else lanes if length < FARTHEST else FEW
        of_length = dict(lengths=(length,)) if 'lengths' in task else dict(length=length)
        fields = of_length | dict(eval_documents=documents)
        asked.append(Asked(source, f'{times}x', fields, chance, reset=parts, parts=parts))
        times *= 4
    return asked


def longest(task: Any) -> int:
    """Tokens of the longest documents of a task, by its fields."""
    return task['lengths'][-1] if 'lengths' in task else task['length']


# How many times the longest of training, by source and size: on two cores what takes minutes.
MOST_TIMES = {
    ('babilong', ''): 16_384,
    ('babilong', 'tiny'): 256,
    **dict.fromkeys((('ruler', ''), ('ruler', 'tiny')), 64),
    **dict.fromkeys((('state_tracking', ''), ('state_tracking', 'tiny')), 64),
    **dict.fromkeys((('mad', ''), ('mad', 'tiny')), 64),
}
SURFACE = {str(keys): f'Recall: {keys} key{"s" * (keys > 1)}' for keys in KEYS}
OLD = dict(passkey='Passkey (old)', needles='Needles (old)', copy='Copy of four digits (old)')
NOTHING_LEFT = (
    'they were within 5 points of chance at a smaller length: they count with what they had there.'
)
COLUMNS = {
    column.name: column
    for column in (
        Column('speed', {'speed': 'Time'}, ''),
        Column('mqar', {'mqar': 'MQAR'}, ANSWERS, by_pairs),
        Column('surface', SURFACE, ANSWERS, surface, NEAR_CHANCE),
        Column('far', {'far': 'Recall: 16 keys, ten million tokens'}, ANSWERS, far, NEAR_CHANCE),
        Column('state', {'state_tracking': 'State tracking'}, ANSWERS, by_length, NOTHING_LEFT),
        Column('swaps', {'state_tracking': 'Products of swaps'}, ANSWERS, by_length, NOTHING_LEFT),
        Column('copying', {'mad': 'Selective copying'}, ANSWERS, by_length, NOTHING_LEFT),
        *(
            Column(name, {'ruler': f'RULER: {name}'}, ANSWERS, by_length, NOTHING_LEFT)
            for name in leaderboard.RULER
        ),
        *(
            Column(name, {'babilong': f'BABILong: {name}'}, ANSWERS, by_length, NOTHING_LEFT)
            for name in leaderboard.BABILONG
        ),
        Column('stdlib', {'stdlib': "Python's standard library"}, BITS),
        Column('novels', {'novels': 'Novels'}, BITS),
        Column('recall', OLD, ANSWERS, not_asked=GUESSING, old=True),
    )
}
RUN = [name for name, column in COLUMNS.items() if not column.old]  # the columns of the command
