"""BABILong's own score: the model writes its answers, and the labels in them are compared."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from longmem_jax import stopping
from longmem_jax.data.sets.babilong.source import GENERATED, Documents
from longmem_jax.data.sets.babilong.streamed import Part, Streamed, part
from longmem_jax.data.sets.babilong.text import asked, label_match
from longmem_jax.experiment import Experiment
from longmem_jax.files import write_json
from longmem_jax.generation.contexts import ContextReader, num_full
from longmem_jax.generation.continuations import complete_texts
from longmem_jax.reporting.progress import Progress

SEGMENTS = 64  # that are read at a time
NOTE = 'No parser of the facts was used.'


def score(experiment: Experiment, params: Any, split: str, progress: Progress) -> dict[str, Any]:
    """The share of right answers at every length, as the benchmark counts them (`text.label_match`).

    Contexts are read a few segments at a time and never held whole. Prints the shares; writes them to
    `WORKDIR/babilong.SPLIT.json`.

    Returns:
      'babilong': task, split, number of answers, length (with the prompt) to share of right answers.
    """
    config = experiment.config
    documents: Any = experiment.corpus(split)
    task, lanes = config.data.task.name, config.evaluate.num_lanes
    model = experiment.evaluation_model
    reader = ContextReader(model, params, experiment.mesh, lanes, progress.say)
    right: dict[int, list[bool]] = {}
    progress.say(f'Writing {len(documents):,} answers of {task}, {split} ...')
    for first in range(0, len(documents), lanes):
        numbers = range(first, min(first + lanes, len(documents)))
        answers = _written(reader, documents, numbers, experiment)
        for number, output in zip(numbers, answers, strict=True):
            sample, _, length = documents.sample(number)
            found = label_match(output, [sample.answer, asked(sample.question)])
            right.setdefault(length, []).append(found)
    shares = {str(length): float(np.mean(found)) for length, found in sorted(right.items())}
    for length, share in shares.items():
        progress.say(f'{task}, length {int(length):,}: {share:.1%} right')
    progress.say(NOTE)
    result = dict(task=task, split=split, answers=len(documents), right=shares, note=NOTE)
    write_json(experiment.workdir / f'babilong.{split}.json', result)
    return {'babilong': result}


def _written(
    reader: ContextReader, documents: Documents, numbers: Sequence[int], experiment: Experiment
) -> list[str]:
    """What the model writes after the questions of documents."""
    conventions, length = experiment.conventions(), reader.model.segment_length
    begin = conventions.read(np.zeros((0,), np.int32))
    prompts = [_after(begin, documents.prompt(number)) for number in numbers]
    reader.fit(max(map(len, prompts)) + GENERATED)
    full = [num_full(len(prompt), length) for prompt in prompts]
    states = reader.start()
    for texts in _parts(prompts, full, SEGMENTS * length):
        states = reader.read(texts, states)
        stopping.poll()
    pending = [prompt[end:] for prompt, end in zip(prompts, full, strict=True)]
    return complete_texts(
        reader, states, pending, GENERATED, experiment.tokenizer, conventions, until=('.',)
    )


def _after(begin: np.ndarray, prompt: Streamed) -> Streamed:
    rest = Part(len(prompt), lambda start, stop: prompt[start:stop])
    return Streamed([part(begin), rest], np.int32)


def _parts(
    prompts: Sequence[Streamed], full: Sequence[int], size: int
) -> Iterator[list[np.ndarray]]:
    """Prompts up to `full` tokens, `size` at a time."""
    for start in range(0, max(full), size):
        yield [
            prompt[start : min(start + size, end)] if start < end else np.zeros((0,), np.int32)
            for prompt, end in zip(prompts, full, strict=True)
        ]
