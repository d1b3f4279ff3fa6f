"""Responses of a dialogue model, and their scores, after training and in `--mode=evaluate`."""

import dataclasses
import json
from typing import Any

import jax

from longmem_jax.errors import UsageError, number_of
from longmem_jax.experiment import Experiment
from longmem_jax.files import write, write_json
from longmem_jax.generation.contexts import ContextReader
from longmem_jax.hosts.data.cmu_dog import Dialogue, read
from longmem_jax.hosts.evaluation.dialogue import respond
from longmem_jax.hosts.evaluation.overlap import overlap, require_libraries
from longmem_jax.reporting.progress import Progress

SHOWN = 3


def require(config: Any) -> None:
    """Raises `UsageError` if `config` asks for responses, and there will be none, or no scores of them.

    A package may be missing, or all conversations of the test split be too short.
    """
    if config.data.task.respond:
        require_libraries()
        asked(config, 'test')


def asked(config: Any, split: str) -> list[Dialogue]:
    """The conversations of a split that have an utterance to write.

    Raises:
      UsageError: none has.
    """
    task = config.data.task
    dialogues = read(config.data.path, split, task.document)[: task.max_dialogues or None]
    long = [each for each in dialogues if len(each.utterances) > task.min_history]
    if not long:
        raise UsageError(
            f'config.data.task.min_history = {task.min_history}: none of the '
            f'{number_of(len(dialogues), "conversation")} of {split} has more utterances; lower it, or '
            'write no responses, with --config.data.task.respond=False.'
        )
    return long


def respond_split(
    experiment: Experiment, params: Any, split: str, progress: Progress
) -> dict[str, Any]:
    """Writes the utterances of a split's conversations, and scores them against the real ones.

    Writes the responses to `WORKDIR/responses.SPLIT.jsonl`, the scores to `WORKDIR/dialogue.SPLIT.json`.

    Returns:
      'dialogue': the metrics of `overlap`, the numbers of conversations and responses, and how they were
      written; nothing if `config.data.task.respond` is False.

    Raises:
      UsageError: a library is missing, or no conversation is long enough.
    """
    config, task = experiment.config, experiment.config.data.task
    if not task.respond:
        return {}
    require_libraries()
    dialogues = asked(config, split)
    progress.say(f'Writing the utterances of {len(dialogues):,} conversations of {split} ...')
    reader = ContextReader(
        experiment.evaluation_model,
        params,
        experiment.mesh,
        config.evaluate.num_lanes,
        progress.say,
    )
    responses = respond(
        reader,
        experiment.tokenizer,
        experiment.conventions(),
        dialogues,
        min_history=task.min_history,
        settings=config.generate.to_dict(),
    )
    scores = overlap(
        [response.reference for response in responses], [response.text for response in responses]
    )
    settings = config.generate
    protocol = (
        f'{len(responses):,} utterances of {len(dialogues):,} conversations, after at least '
        f'{task.min_history} real ones, at most {settings.length} tokens, temperature '
        f'{settings.temperature}, top_k {settings.top_k}, top_p {settings.top_p}'
    )
    result = {'split': split, **scores, 'responses': len(responses), 'protocol': protocol}
    if jax.process_index() == 0:
        lines = (json.dumps(dataclasses.asdict(response)) + '\n' for response in responses)
        write(experiment.workdir / f'responses.{split}.jsonl', ''.join(lines))
        path = experiment.workdir / f'dialogue.{split}.json'
        write_json(path, result)
    progress.table(
        f'Responses, {split}', ('metric', '%'), [(name, f'{v:.2f}') for name, v in scores.items()]
    )
    progress.say(protocol)
    for response in responses[:SHOWN]:
        progress.say(f'  = {response.speaker}: {response.reference}\n  > {response.text}')
    return {'dialogue': result}
