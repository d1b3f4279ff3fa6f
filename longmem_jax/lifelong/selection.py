"""Which rows of a stream an episodic memory keeps (the selection rules that Wang et al., 2020, compare).

'random' writes a row with a fixed probability. The others give a row a score, its log probability up to
a constant: `p = min(1, exp(score - level))`. The level is a running quantile: every written row raises
it and every other row lowers it, in such a proportion that the share of written rows is the write rate
in the long run, whatever the scores are. Rows are decided on one after another and by keys folded with
their numbers, so the size of a batch does not matter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from longmem_jax.lifelong import episodic, steps
from longmem_jax.lifelong.learner import LearnerState
from longmem_jax.lifelong.network import Network
from longmem_jax.problems import above, between, one_of

RULES = ('random', 'diverse', 'uncertain', 'forgettable')
SIGNS = ('text', 'printed')
STEP = 0.25  # moves of the level, in units of the spread of scores
SHARPNESS = 10.0  # of 'uncertain' and 'forgettable', which are to take the most extreme rows
MEMORY = 0.01  # weight of a new score in their running mean and spread
SETTINGS = dict(write='random', write_rate=1.0, write_beta=10.0, write_sign='text')


def check(settings: Any) -> list[str]:
    """Problems of the fields of `SETTINGS`.

    `write`: one of `RULES`. `write_rate`: share of the rows that are written. `write_beta`: scale of
    the squared distances of 'diverse'; the larger, the more is left to chance. `write_sign`: 'text'
    keeps rows that are far from the memory, as the paper says; 'printed' keeps those that are near, as
    its formula is printed.
    """
    wrong = one_of(settings, write=RULES, write_sign=SIGNS)
    return wrong + between(settings, 0, 1, 'write_rate') + above(settings, 0, 'write_beta')


class Level(flax.struct.PyTreeNode):
    """What a rule with scores remembers.

    Attributes:
      level: a row whose score is at it is written surely, float32 scalar.
      mean, variance: running ones of the scores, float32 scalars.
      count: scores seen, int32 scalar.
    """

    level: jax.Array
    mean: jax.Array
    variance: jax.Array
    count: jax.Array


def start() -> Level:
    """Before the first row."""
    level, mean, variance = (jnp.zeros(()) for _ in range(3))
    return Level(level, mean, variance, jnp.zeros((), jnp.int32))


class Decision(NamedTuple):
    """Which of n rows are written, bool [n], and the level after them."""

    chosen: jax.Array
    level: Level


def at_random(key: jax.Array, numbers: jax.Array, there: jax.Array, rate: float) -> jax.Array:
    """Each row that is there with probability `rate`, bool [n].

    The key is folded with the number of the row.
    """
    if rate >= 1:
        return there
    return there & (_uniform(key, numbers) < rate)


def _uniform(key: jax.Array, numbers: jax.Array) -> jax.Array:
    """One number in [0, 1) per row, float32 [n]."""
    return jax.vmap(lambda number: jax.random.uniform(jax.random.fold_in(key, number)))(numbers)


def by_score(
    level: Level,
    score: Callable[[jax.Array, jax.Array], jax.Array],
    key: jax.Array,
    numbers: jax.Array,
    there: jax.Array,
    rate: float,
) -> Decision:
    """Decides row by row with `p = min(1, exp(score - level))`.

    Args:
      score: `(place of the row among these, chosen so far bool [n]) -> float32 scalar`; infinite =
        written surely, and -infinite = surely not. Neither moves the level.
    """
    if rate >= 1 or rate <= 0:
        return Decision(there & (rate >= 1), level)
    draws = _uniform(key, numbers)

    def decide(carry: tuple[Level, jax.Array], place: jax.Array) -> tuple[Any, None]:
        level, chosen = carry
        value = score(place, chosen)
        counted = there[place] & jnp.isfinite(value)
        # The first score is one that is written with probability `rate`.
        begun = jnp.where(counted, value, 0) - jnp.log(rate)
        height = jnp.where(level.count == 0, begun, level.level)
        written = there[place] & (draws[place] < jnp.exp(jnp.minimum(value - height, 0)))
        spread = jnp.sqrt(1 + level.variance)  # one nat is the least that matters
        moved = _seen(level, value).replace(
            level=height + STEP * spread * (written.astype(jnp.float32) - rate)
        )
        level = jax.tree.map(lambda new, old: jnp.where(counted, new, old), moved, level)
        return (level, chosen.at[place].set(written)), None

    nobody = jnp.zeros(there.shape, bool)
    (level, chosen), _ = jax.lax.scan(decide, (level, nobody), jnp.arange(len(there)))
    return Decision(chosen, level)


def _seen(level: Level, value: jax.Array) -> Level:
    """Mean and variance after one more score: of all at first, then of about the last 1 / MEMORY."""
    count = level.count + 1
    share = jnp.maximum(MEMORY, 1 / count)
    difference = value - level.mean
    return Level(
        level=level.level,
        mean=level.mean + share * difference,
        variance=(1 - share) * (level.variance + share * jnp.square(difference)),
        count=count,
    )


def diverse(
    distances: jax.Array, keys: jax.Array, beta: float, sign: str
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The score `+- min |g(x) - g(m)|^2 / beta` over the memory and the rows chosen before this one.

    Args:
      distances: least squared distance to the memory, float32 [n]; infinite = the memory is empty,
        and the first row is written in any case.
      keys: `g(x)` float32 [n, width].
      beta: scale.
      sign: 'text': rows that are unlike the memory, as the paper says; 'printed': rows that are like
        it, as its formula says.

    Returns:
      For `by_score`.
    """
    pairs = jnp.square(keys[:, None] - keys[None]).sum(axis=-1)

    def score(place: jax.Array, chosen: jax.Array) -> jax.Array:
        least = jnp.minimum(distances[place], jnp.where(chosen, pairs[place], jnp.inf).min())
        return jnp.where(jnp.isinf(least), jnp.inf, least if sign == 'text' else -least) / beta

    return score


def uncertain(losses: jax.Array) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The score of rows that the model is unsure of.

    `-log p(y | x)` before it learned them, times 10.
    """
    return lambda place, chosen: SHARPNESS * losses[place]


def forgettable(before: jax.Array, after: jax.Array) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The score of rows that are forgotten or never learned, after Toneva et al. (2019), times 10.

    They count how often a row that was answered rightly is answered wrongly later, and put rows that
    never were right before all others. A stream is read once, so a row is asked twice here: before the
    step that learns it, and after it. Never right is 2, forgotten 1, else 0.
    """
    events = jnp.where(after > 0.5, 0.0, jnp.where(before > 0.5, 1.0, 2.0))
    return lambda place, chosen: SHARPNESS * events[place]


def write_any(
    state: LearnerState, batch: steps.Batch, finite: jax.Array, rate: float
) -> episodic.Memory:
    """The memory of a method without keys, after a random share of a batch was written.

    In a step that is not finite it stays as it was.
    """
    chosen = at_random(steps.write_key(state), batch.numbers, batch.there & finite, rate)
    keys = jnp.zeros((len(chosen), 0))
    return episodic.write(state.memory, batch.numbers, keys, chosen)


def write_chosen(
    state: LearnerState,
    batch: steps.Batch,
    keys: jax.Array,
    result: Any,
    moved: steps.Update,
    network: Network,
    level: Level,
    settings: Any,
) -> tuple[episodic.Memory, Level]:
    """The memory after the rows that the rule of the settings chooses of a batch, by its losses and
    scores before its step. `keys`, float32 [n, width], have the width 0 where the rule needs none.
    Rows are not written if the step was skipped (`moved`).
    """
    key, there = steps.write_key(state), batch.there & moved.finite
    rule, rate = settings['write'], settings['write_rate']
    if rule == 'random' or rate >= 1:
        chosen = at_random(key, batch.numbers, there, rate)
        return episodic.write(state.memory, batch.numbers, keys, chosen), level
    if rule == 'diverse':
        distances = episodic.nearest(state.memory, keys, 1)[1][:, 0]
        score = diverse(distances, keys, settings['write_beta'], settings['write_sign'])
    elif rule == 'uncertain':
        score = uncertain(result.losses)
    else:
        before = network.head.right(result.scores, batch.rows)
        after = network.head.right(network.scores(moved.params, batch.rows), batch.rows)
        score = forgettable(before, after)
    decision = by_score(level, score, key, batch.numbers, there, rate)
    memory = episodic.write(state.memory, batch.numbers, keys, decision.chosen)
    return memory, decision.level
