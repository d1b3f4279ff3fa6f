"""`--mode=generate --prompts=FILE`: continues many texts, several at a time."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.commands.writer import Template, Writer
from longmem_jax.devices.sharding import num_shards
from longmem_jax.errors import number_of
from longmem_jax.experiment import Experiment
from longmem_jax.files import opened
from longmem_jax.generation.contexts import ContextReader, num_full
from longmem_jax.generation.continuations import complete_texts
from longmem_jax.generation.reader import keys_of
from longmem_jax.generation.text import read_prompts, say_aside


def generate_all(
    experiment: Experiment,
    prompts: str,
    options: dict[str, Any],
    *,
    output: str = '',
    load_state: str = '',
    template: Template | None = None,
    out: TextIO | None = None,
) -> list[str]:
    """Continues the prompts of a file, each by itself and as `generate` does with the same seed.

    `config.evaluate.num_lanes` texts are read and continued at a time; a beam search has one.

    Args:
      experiment, options, load_state, template: as in `generate`.
      prompts: file of JSON lines; every line is an object with the field `text`.
      output: file of JSON lines: the object, with the field `continuation`; '' = they are printed.
      out: where they are printed; default stdout.

    Returns:
      The continuations.

    Raises:
      UsageError: as in `generate`, another file, or one that cannot be written.
    """
    examples = read_prompts(prompts, output)
    writer, found = Writer(experiment, options, load_state=load_state, template=template), []
    texts = [example['text'].encode('utf-8', 'replace') for example in examples]
    with opened(output, out or sys.stdout) as file:
        for example, text in zip(examples, continuations(experiment, writer, texts), strict=True):
            found.append(text)
            line = json.dumps(example | {'continuation': text}, ensure_ascii=False)
            print(line, file=file, flush=True)
    return found


def continuations(experiment: Experiment, writer: Writer, texts: Sequence[bytes]) -> Iterator[str]:
    """What follows each of the texts, as soon as it is known."""
    write = _one_by_one if writer.settings['beams'] else _together
    return write(experiment, writer, texts)


def _one_by_one(experiment: Experiment, writer: Writer, texts: Sequence[bytes]) -> Iterator[str]:
    # At once for all, so that a prompt which is too long is said before hours of others.
    _fit(writer, [writer.tokens(text)[0].size for text in texts], 1)
    for number, text in enumerate(texts, 1):
        reader, said = writer.read(text)
        say_aside(f'prompt {number} of {len(texts)}, {said}')
        yield ''.join(writer.pieces(reader))


def _together(experiment: Experiment, writer: Writer, texts: Sequence[bytes]) -> Iterator[str]:
    most, shards = experiment.config.evaluate.num_lanes, num_shards(experiment.mesh, 'lanes')
    lanes = min(most, -(-max(len(texts), 1) // shards) * shards)
    prompts = [writer.tokens(text)[0].astype(np.int32) for text in texts]
    _fit(writer, [len(prompt) for prompt in prompts], lanes)
    reader = ContextReader(writer.model, writer.params, experiment.mesh, lanes)
    for first in range(0, len(texts), lanes):
        part = prompts[first : first + lanes]
        count = number_of(sum(map(len, part)), 'prompt token')
        numbers = f's {first + 1} to {first + len(part)}' if len(part) > 1 else f' {first + 1}'
        say_aside(f'prompt{numbers} of {len(texts)}, {count}')
        yield from _continued(experiment, writer, reader, part)


def _fit(writer: Writer, sizes: Sequence[int], lanes: int) -> None:
    """`writer.fit` for the longest prompt, which an error names."""
    longest = max(sizes, default=0)
    where = f'prompt {sizes.index(longest) + 1} of {len(sizes)}: ' if sizes else ''
    writer.fit(longest, lanes, where)


def _continued(
    experiment: Experiment, writer: Writer, reader: ContextReader, prompts: Sequence[np.ndarray]
) -> list[str]:
    """What follows the prompts, int32 [n] each and at most as many as the reader has lanes."""
    states, settings, lanes = None, writer.settings, reader.num_lanes
    if writer.memory is not None:  # all go on from it
        state, pending = writer.memory
        states = jax.tree.map(lambda leaf: jnp.repeat(leaf, lanes, axis=0), state)
        states = jax.device_put(states, reader.shardings)
        prompts = [np.concatenate([pending[0], prompt]) for prompt in prompts]
    full = [num_full(len(prompt), reader.model.segment_length) for prompt in prompts]
    states = reader.read([prompt[:end] for prompt, end in zip(prompts, full, strict=True)], states)
    return complete_texts(
        reader,
        states,
        [prompt[end:] for prompt, end in zip(prompts, full, strict=True)],
        settings['length'],
        writer.tokenizer,
        experiment.conventions(),
        (),
        temperature=float(settings['temperature']),
        top_k=int(settings['top_k']),
        top_p=float(settings['top_p']),
        keys=jnp.repeat(keys_of(settings['seed'], 1), lanes),
    )
