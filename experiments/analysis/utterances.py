"""Utterances that a dialogue model wrote, with the parts of the text that they attended to.

python -m experiments.analysis.utterances --workdir=DIR --output=utterances.png [--count=4]

DIR is a run of `configs/cmu_dog.py` with a continuous memory and `responses.test.jsonl`. Every panel is
an utterance from the middle of a conversation: how much attention of the last layer each place of the
text has, document first, while the utterance is written; above it the excerpts that have most of it
(ACL Figs. 4, 12).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from experiments.analysis import continuous_figures as figures
from experiments.analysis import continuous_memory, memory_positions
from longmem_jax.commands import entry
from longmem_jax.data.conventions import Conventions
from longmem_jax.data.json_lines import read_examples
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.hosts.data.cmu_dog import Dialogue, read
from longmem_jax.hosts.evaluation.dialogue import contexts
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.untrusted.schema import shown

SIDE = 12  # tokens of an excerpt on either side of its middle
EXCERPTS = 3

if __name__ == '__main__':
    _OUTPUT = flags.DEFINE_string('output', 'utterances.png', 'PNG to write.')
    _COUNT = flags.DEFINE_integer('count', 4, 'Number of utterances.', lower_bound=1)


def places(
    mass: np.ndarray, fields: dict[str, Any], length: int, first: int, last: int
) -> np.ndarray:
    """How much attention each token of a text has while some of its tokens are predicted.

    Args:
      mass: float [tokens, bins], attention of every token of one layer.
      fields: of the layer, from `memory_positions.fields_of`.
      length: of a segment.
      first, last: the tokens that attend, `last` excluded.

    Returns:
      float64 [tokens], their sum 1, or all 0 while nothing is stored.
    """
    by_segment = continuous_memory.by_segment(mass, length)
    stored = memory_positions.follow(by_segment, fields, length, fields['sticky'] != 'none')
    centres = (np.arange(mass.shape[1]) + 0.5) / mass.shape[1]
    found = np.zeros(len(mass))
    for segment in range(first // length, (last - 1) // length + 1):
        owners, positions = stored[segment]
        if not len(owners):
            continue
        nearest = owners[np.abs(positions[None] - centres[:, None]).argmin(axis=1)]
        begin, end = segment * length, (segment + 1) * length
        rows = mass[max(first, begin) : min(last, end)]
        found += np.bincount(nearest, weights=rows.sum(axis=0), minlength=len(mass))
    return found / max(found.sum(), 1e-30)


def excerpts(shares: np.ndarray) -> Iterator[tuple[int, int, float]]:
    """The parts with the largest shares, which do not overlap: first and last token, and share.

    `shares` is float [tokens]; a part has at most 2 SIDE + 1 tokens.
    """
    left = shares.copy()
    for _ in range(EXCERPTS):
        around = np.convolve(left, np.ones(2 * SIDE + 1), mode='same')[: len(left)]
        middle = int(around.argmax())
        if around[middle] <= 0:
            return
        first, last = max(middle - SIDE, 0), min(middle + SIDE + 1, len(left))
        yield first, last, float(left[first:last].sum())
        left[first:last] = 0.0


def attended(
    model: LanguageModel,
    params: Any,
    tokenizer: Any,
    conventions: Conventions,
    dialogue: Dialogue,
    turn: int,
    text: str,
) -> figures.Utterance:
    """What an utterance attended to.

    Args:
      model, params: with infinity-former layers.
      tokenizer: of the model.
      conventions: how its texts begin.
      dialogue: the conversation.
      turn: the number of utterances before it.
      text: what was written.

    Raises:
      UsageError: as `continuous_memory.read_text`.
    """
    before, length = contexts(tokenizer, conventions, dialogue)[turn], model.segment_length
    written = tokenizer.encode(f' {text}\n'.encode()).astype(np.int32)
    tokens = np.concatenate([before, written])
    # Only full segments are read; what follows the utterance changes nothing before it.
    padded = np.zeros((-(-len(tokens) // length) * length + 1,), np.int32)
    padded[: len(tokens)] = tokens
    reading = continuous_memory.read_text(model, params, padded)
    first, last = len(before) - 1, len(tokens) - 1
    fields = memory_positions.fields_of(model)
    shares = places(reading.mass[-1], fields, length, first, last)[:first]

    def shown(start: int, end: int) -> str:
        return tokenizer.decode(padded[start:end]).decode('utf-8', 'replace')

    document = tokenizer.encode(f'{dialogue.document}\n'.encode()) if dialogue.document else ()
    return figures.Utterance(
        text=f'{dialogue.utterances[turn][0]}: {text}',
        shares=shares,
        document=len(document) + 1,
        seen=[(shown(start, end), share) for start, end, share in excerpts(shares)],
    )


def chosen(experiment: Experiment, count: int) -> Iterator[tuple[Dialogue, int, str]]:
    """An utterance that was written in the middle of each of the first conversations, and its turn.

    Raises:
      UsageError: the run has written no responses, or those of other conversations.
    """
    path, config = experiment.workdir / 'responses.test.jsonl', experiment.config
    if not path.exists():
        raise UsageError(
            f'{path} is missing: train configs/cmu_dog.py, or --mode=evaluate, with '
            'config.data.task.respond=True.'
        )
    dialogues = {each.name: each for each in read(config.data.path, 'test')}
    written: dict[str, list[Any]] = {}
    for line in read_examples(path, dict(dialogue=str, turn=int, text=str)):
        known = dialogues.get(line['dialogue'])
        if known is None or not 0 <= line['turn'] < len(known.utterances):
            raise UsageError(
                f'{path}: no utterance {line["turn"]} of a conversation {shown(line["dialogue"])} is '
                f'in the test split of config.data.path = {config.data.path!r}; write the responses '
                'again by --mode=evaluate.'
            )
        written.setdefault(line['dialogue'], []).append(line)
    for name, lines in list(written.items())[:count]:
        line = lines[len(lines) // 2]
        yield dialogues[name], line['turn'], line['text']


def _main(experiment: Experiment) -> None:
    params, _ = experiment.restore_parameters()
    model, tokenizer = experiment.evaluation_model, experiment.tokenizer
    conventions = experiment.conventions()
    found = [
        attended(model, params, tokenizer, conventions, *each)
        for each in chosen(experiment, _COUNT.value)
    ]
    figures.draw_utterances(found, _OUTPUT.value)
    for utterance in found:
        print(utterance.text)
        for text, share in utterance.seen:
            print(f'  {share:.3f}  {" ".join(text.split())}')


if __name__ == '__main__':
    entry.command(_main)
