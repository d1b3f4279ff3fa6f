"""Data sets of lifelong learning, by names of `config.data.source`: their tasks, orders and head."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.lifelong import stream
from longmem_jax.lifelong.data import classification, clusters, qa, relations
from longmem_jax.lifelong.heads import Candidates, Classes
from longmem_jax.lifelong.network import Encoder, Head
from longmem_jax.lifelong.span_head import SpanHead


class Read(NamedTuple):
    """The content of files, before it is tokenized.

    Attributes:
      texts: what a stream shows, to pretrain on and to learn a vocabulary from; documents of questions
        are read when it is called.
      content: what `LabelledSet.tasks` needs of them.
    """

    texts: Callable[[], list[str]]
    content: Any


class Wanted(NamedTuple):
    """What tasks are made of.

    Attributes:
      content: of the files, `Read.content`.
      data: `config.data`.
      order: name of a published order of the tasks.
      tokenizer: of the encoder.
      encoder: makes it, for sets that need its vectors.
      report: called with lines for the user.
      together: all tasks are shuffled together.
    """

    content: Any
    data: Any
    order: str
    tokenizer: Tokenizer
    encoder: Callable[[], Encoder]
    report: Callable[[str], None]
    together: bool


class Asked(NamedTuple):
    """Tasks and their head.

    Attributes:
      tasks: by name, with rows of numpy arrays.
      order: the names in the order in which they come.
      head: what is asked of all of them.
    """

    tasks: Mapping[str, stream.Task]
    order: tuple[str, ...]
    head: Head


class LabelledSet(NamedTuple):
    """A data set, a value of `config.data.source`.

    Attributes:
      settings: fields of `config.data.task`, with the papers' values.
      check: of these fields, each beginning with the name of one.
      orders: published orders of the tasks; () = random by `config.data.seed`.
      read: `config.data` to the content of the files.
      tasks: `Wanted -> Asked`.
    """

    settings: dict[str, Any]
    check: Callable[[Any], list[str]]
    orders: Mapping[str, tuple[str, ...]]
    read: Callable[[Any], Read]
    tasks: Callable[[Wanted], Asked]


def _classification(wanted: Wanted) -> Asked:
    length = wanted.data.task.max_length
    tasks = classification.tasks(wanted.content, wanted.tokenizer, length)
    names = stream.named_order(classification.ORDERS, wanted.order)
    return Asked(tasks, names, Classes(classification.CLASSES))


def _qa(wanted: Wanted) -> Asked:
    settings = wanted.data.task
    tasks = qa.tasks(wanted.content, wanted.tokenizer, settings, wanted.report)
    return Asked(
        tasks, stream.named_order(qa.ORDERS, wanted.order), SpanHead(settings.max_question)
    )


def _relations(wanted: Wanted) -> Asked:
    settings, found = wanted.data.task, wanted.content
    encoded = relations.encode(found, wanted.tokenizer, settings.max_length)
    table = None
    if not settings.clusters and not settings.vectors:
        table = np.asarray(wanted.encoder().init(jax.random.key(0))['embedding']['table_0'])
    groups = clusters.find(found, encoded.names, settings, table, wanted.report)
    places = stream.random_order([str(i) for i in range(len(groups))], wanted.data.seed)
    every = wanted.together or not settings.only_seen
    tasks = relations.tasks(encoded, groups, [int(place) for place in places], every)
    return Asked(tasks, tuple(tasks), Candidates(encoded.names))


def _set(module: ModuleType, tasks: Callable[[Wanted], Asked]) -> LabelledSet:
    """The data set of a module, by the names that every one of them has."""

    def read(data: Any) -> Read:
        found = module.read(data.path, data.task)
        return Read(lambda: module.training_texts(found), found)

    orders = getattr(module, 'ORDERS', {})
    return LabelledSet(module.SETTINGS, module.check, orders, read, tasks)


LABELLED: dict[str, LabelledSet] = {
    'classification': _set(classification, _classification),
    'qa': _set(qa, _qa),
    'relations': _set(relations, _relations),
}
