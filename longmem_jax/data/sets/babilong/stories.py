"""bAbI's stories qa1 to qa5 (Weston et al., 2015), by the rules of the released generator.

People move between six places, and take, drop and give three objects. A reader does not know where they
begin, so a question is asked only if the facts answer it. In qa5 the facts between a gift and its
question happen too; the released generator writes them and does not carry them out.
"""

import functools
import random
from collections.abc import Callable
from typing import NamedTuple

PLACES = ('bathroom', 'bedroom', 'garden', 'hallway', 'kitchen', 'office')
OBJECTS = {'apple': 'kitchen', 'football': 'garden', 'milk': 'kitchen'}  # and where they begin
PEOPLE = {'John': 'kitchen', 'Mary': 'bedroom', 'Sandra': 'garden', 'Daniel': 'hallway'}
GIVERS = {'Bill': 'kitchen', 'Mary': 'bedroom', 'Fred': 'garden', 'Jeff': 'hallway'}  # of qa5
OPPOSITE = {'north': 'south', 'south': 'north', 'east': 'west', 'west': 'east'}
LABELS = {
    **dict.fromkeys(('qa1', 'qa2', 'qa3', 'qa4'), PLACES),
    'qa5': ('Bill', 'Fred', 'Jeff', 'Mary', 'apple', 'football', 'milk'),
}
QUESTIONS = 5  # of a story; qa4 has one
TRIES = 100  # for an action that is possible, before another kind is drawn
MOST_BETWEEN = 5  # facts between a gift and its question
# How often qa5 asks in each way, counted in the released test set.
GIFTS = {'what': 2, 'who gave': 1, 'to whom': 1, 'who gave to': 1, 'who received': 1}


class Fact(NamedTuple):
    """What happens: 'move' (who, place), 'get' and 'drop' (who, object), 'give' (who, object, to whom).

    Or 'is' (place, direction, place): the kitchen is north of the office.
    """

    kind: str
    who: str
    what: str
    to: str = ''


class Question(NamedTuple):
    """A question, and what it names.

    'where is' (person or object), 'where was' (object, the place after), 'what is' (direction, place),
    'what of' (place, direction): what is the place north of; 'what' (who, to whom) was given; 'who gave'
    (object), 'to whom' (who, object), 'who gave to' (object, to whom), 'who received' (object).
    """

    kind: str
    first: str
    second: str = ''


class Sample(NamedTuple):
    """All facts before a question, the question, and its answer, one of `LABELS`."""

    facts: tuple[Fact, ...]
    question: Question
    answer: str


# By who moves and from where; made once, since training draws a story per document.
MOVES = {
    (who, place): [Fact('move', who, to) for to in PLACES if to != place]
    for who in (*PEOPLE, *GIVERS)
    for place in PLACES
}


class _World:
    """Who and what is where."""

    def __init__(self, people: dict[str, str], draws: random.Random):
        self.people, self.objects, self._draws = dict(people), dict(OBJECTS), draws
        self.facts: list[Fact] = []  # so far

    def _one(self, possible: list[Fact], all_: int) -> Fact | None:
        """One of the possible facts; None if `TRIES` draws of `all_` facts would find none of them."""
        share = len(possible) / all_
        if not possible or self._draws.random() < (1 - share) ** TRIES:
            return None
        return self._draws.choice(possible)

    def _drawn(self, kinds: tuple[str, ...]) -> Fact | None:
        """A possible fact of one of the kinds, all of which are as likely."""
        people, objects = self.people, self.objects
        if kinds == ('move',):
            return self._draws.choice([move for at in people.items() for move in MOVES[at]])
        if kinds == ('give',):
            gifts = [
                Fact('give', objects[what], what, to)
                for what in objects
                for to in people
                if objects[what] in people
                and to != objects[what]
                and people[to] == people[objects[what]]
            ]
            return self._one(gifts, len(people) ** 2 * len(objects))
        possible = list[Fact]()
        if 'drop' in kinds:
            possible += [Fact('drop', who, what) for what, who in objects.items() if who in people]
        for who, place in people.items():
            if place in objects.values():
                possible += [Fact('get', who, what) for what in objects if objects[what] == place]
        return self._one(possible, len(kinds) * len(people) * len(objects))

    def happens(
        self, kinds: tuple[tuple[str, ...], ...], wanted: Callable[[Fact], bool] = lambda fact: True
    ) -> Fact:
        """Makes a wanted fact true, of one of the groups of kinds, which are equally likely."""
        fact = None
        while fact is None or not wanted(fact):
            fact = self._drawn(self._draws.choice(kinds))
        if fact.kind == 'move':
            self.people[fact.who] = fact.what
        else:
            after = {'get': fact.who, 'drop': self.people[fact.who], 'give': fact.to}
            self.objects[fact.what] = after[fact.kind]
        self.facts.append(fact)
        return fact

    def asked(self, question: Question, answer: str) -> Sample:
        """A question about the facts so far."""
        return Sample(tuple(self.facts), question, answer)


# Taking and dropping are one draw, so that moves are a third of what happens, or more.
CARRY = ('get', 'drop'), ('get', 'drop'), ('move',)


def _where_is_person(draws: random.Random) -> list[Sample]:
    """qa1: two moves, then a question, five times."""
    world, told = _World(PEOPLE, draws), dict[str, str]()
    samples: list[Sample] = []
    for _ in range(QUESTIONS):
        for _ in range(2):
            fact = world.happens((('move',),))
            told[fact.who] = fact.what
        who = draws.choice(list(told))
        samples.append(world.asked(Question('where is', who), told[who]))
    return samples


def _where_is_object(draws: random.Random) -> list[Sample]:
    """qa2: where is an object that is held by a person whose place was told?"""
    world, told, since = _World(PEOPLE, draws), set[str](), 0
    samples: list[Sample] = []
    while len(samples) < QUESTIONS:
        fact = world.happens(CARRY)
        if fact.kind == 'move':
            told.add(fact.who)
        since += 1
        if since > 2 and draws.random() < 0.5:
            known = [what for what, holder in world.objects.items() if holder in told]
            if known:
                what, since = draws.choice(known), 0
                place = world.people[world.objects[what]]
                samples.append(world.asked(Question('where is', what), place))
    return samples


def _where_was_object(draws: random.Random) -> list[Sample] | None:
    """qa3: where was an object before the last place that is known of it?

    None = a question needs other than three facts: then the released generator begins another story.
    """
    world, told, since = _World(PEOPLE, draws), set[str](), 0
    samples: list[Sample] = []
    taken: dict[str, int] = {}  # by object, the fact by which its holder took it
    been: dict[str, list[tuple[str, int]]] = {what: [] for what in OBJECTS}  # places, and `taken`
    while len(samples) < QUESTIONS:
        fact = world.happens(CARRY)
        if fact.kind == 'move':
            told.add(fact.who)
        if fact.kind == 'get':
            taken[fact.what] = len(world.facts)
        for what, holder in world.objects.items():
            if holder in told and (not been[what] or been[what][-1][0] != world.people[holder]):
                been[what].append((world.people[holder], taken[what]))
        since += 1
        if since > 2 and draws.random() < 0.5:
            known = [what for what in OBJECTS if len(been[what]) > 1]
            if known:
                what, since = draws.choice(known), 0
                (before, first), (after, second) = been[what][-2:]
                if first != second:
                    return None
                samples.append(world.asked(Question('where was', what, after), before))
    return samples


def _where_are_places(draws: random.Random) -> list[Sample]:
    """qa4: three places in a row, of which two relations are told, and one is asked for."""
    low, middle, high = draws.sample(PLACES, 3)
    direction = draws.choice(('north', 'east'))
    facts = []
    for first, second in ((low, middle), (middle, high)):
        forms = Fact('is', first, direction, second), Fact('is', second, OPPOSITE[direction], first)
        facts.append(draws.choice(forms))
    draws.shuffle(facts)
    # The first is north, or east, of the second.
    pair = draws.choice(((low, middle), (middle, high)))
    questions = []
    for (first, second), to in ((pair, direction), (pair[::-1], OPPOSITE[direction])):
        questions.append(Sample(tuple(facts), Question('what is', to, second), first))
        questions.append(Sample(tuple(facts), Question('what of', first, to), second))
    return [draws.choice(questions)]


def _apart(gift: Fact, fact: Fact) -> bool:
    """Whether a fact is of another object than a gift, and no gift of the same to the same person."""
    people = fact.kind, fact.who, fact.to
    return fact.what != gift.what and people != (gift.kind, gift.who, gift.to)


def _who_gave(draws: random.Random) -> list[Sample]:
    """qa5: after a gift, and up to five facts that it has no part in, a question about it."""
    world, since = _World(GIVERS, draws), 0
    samples: list[Sample] = []
    kinds = ('get',), ('give',), ('move',)
    while len(samples) < QUESTIONS:
        gift = world.happens(kinds)
        since += 1
        if since < 2 or gift.kind != 'give':
            continue
        for _ in range(draws.randint(0, MOST_BETWEEN)):
            world.happens(kinds, functools.partial(_apart, gift))
        since, (_, who, what, to) = 0, gift
        kind = draws.choices(list(GIFTS), list(GIFTS.values()))[0]
        question, answer = {
            'what': (Question('what', who, to), what),
            'who gave': (Question('who gave', what), who),
            'to whom': (Question('to whom', who, what), to),
            'who gave to': (Question('who gave to', what, to), who),
            'who received': (Question('who received', what), to),
        }[kind]
        samples.append(world.asked(question, answer))
    return samples


STORIES: dict[str, Callable[[random.Random], list[Sample] | None]] = {
    'qa1': _where_is_person,
    'qa2': _where_is_object,
    'qa3': _where_was_object,
    'qa4': _where_are_places,
    'qa5': _who_gave,
}


def story(task: str, draws: random.Random) -> list[Sample]:
    """The questions of a story, each with all facts before it and without the earlier questions."""
    samples = None
    while samples is None:
        samples = STORIES[task](draws)
    return samples
