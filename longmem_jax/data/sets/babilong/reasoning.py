"""Answers to bAbI's questions from the facts alone, and the facts that they follow from.

The stories are not made by this: it reads them as a careful reader would.
"""

from collections.abc import Sequence
from typing import NamedTuple

from longmem_jax.data.sets.babilong.stories import OPPOSITE, Fact, Question


class Found(NamedTuple):
    """An answer, and the numbers of the facts that it follows from, the first fact is 0."""

    answer: str
    facts: tuple[int, ...]


def _whereabouts(facts: Sequence[Fact], what: str) -> tuple[list[Found], Found | None]:
    """Where a person or an object is known to have been, without repetition, and where it is."""
    moves: dict[str, Found] = {}  # the last of every person
    holder, reason, been = what, tuple[int, ...](), list[Found]()  # a person holds itself
    now: Found | None = None
    for number, fact in enumerate(facts):
        if fact.kind == 'move':
            moves[fact.who] = Found(fact.what, (number,))
        elif fact.what == what:
            holder, reason = fact.to or fact.who, (number,)
        dropped = fact.kind == 'drop' and fact.what == what
        if holder:
            now = moves.get(holder)
            now = now and Found(now.answer, tuple(sorted((*now.facts, *reason))))
        if now and (not been or been[-1].answer != now.answer):
            been.append(now)
        holder = '' if dropped else holder
    return been, now


def _given(facts: Sequence[Fact], question: Question) -> Found | None:
    """The last gift that a question is about, and what is asked of it."""
    names = {
        'what': ('who', 'to', 'what'),
        'who gave': ('what', '', 'who'),
        'to whom': ('who', 'what', 'to'),
        'who gave to': ('what', 'to', 'who'),
        'who received': ('what', '', 'to'),
    }
    first, second, wanted = names[question.kind]
    for number in reversed(range(len(facts))):
        fact = facts[number]
        fits = getattr(fact, first) == question.first
        if (
            fact.kind == 'give'
            and fits
            and (not second or getattr(fact, second) == question.second)
        ):
            return Found(getattr(fact, wanted), (number,))
    return None


def _beside(facts: Sequence[Fact], question: Question) -> Found | None:
    """The place that is north, or so, of another; or that this one is north of."""
    place, direction = question.second, question.first
    if question.kind == 'what of':
        place, direction = question.first, OPPOSITE[question.second]
    for number, fact in enumerate(facts):
        if fact.kind == 'is' and (fact.what, fact.to) == (direction, place):
            return Found(fact.who, (number,))
        if fact.kind == 'is' and (OPPOSITE[fact.what], fact.who) == (direction, place):
            return Found(fact.to, (number,))
    return None


def answer(facts: Sequence[Fact], question: Question) -> Found | None:
    """The answer; None if the facts do not say it."""
    if question.kind in ('what is', 'what of'):
        return _beside(facts, question)
    if question.kind not in ('where is', 'where was'):
        return _given(facts, question)
    been, now = _whereabouts(facts, question.first)
    if question.kind == 'where is':
        return now
    for before, after in zip(been[-2::-1], been[::-1], strict=False):
        if after.answer == question.second:
            return Found(before.answer, tuple(sorted({*before.facts, *after.facts})))
    return None


def whatever_thing(facts: Sequence[Fact], question: Question) -> str | None:
    """What is likely of whatever thing a question of qa2 or qa3 is about; None if nothing is.

    It needs a fact less than the answer. qa2: where the person is who last took or dropped something;
    qa3: where the person was before who came last to the place that the question names.
    """
    last, after = None, question.kind == 'where was'
    been: dict[str, list[str]] = {}  # where a person was told to be, and is
    for fact in facts:
        if fact.kind == 'move':
            been.setdefault(fact.who, []).append(fact.what)
        if fact.what == question.second if after else fact.kind != 'move':
            last = fact.who, len(been.get(fact.who, ()))
    if last is None:
        return None
    who, count = last
    places = been.get(who, [])[: count - 1] if after else been.get(who, [])
    return next((place for place in reversed(places) if place != question.second), None)
