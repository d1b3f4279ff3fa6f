"""`--mode=generate`: reads the whole prompt into memory, then streams the generated text."""

import sys
from typing import Any, TextIO

import jax
import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation import memory_file as state_file
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.generation.text import TextStream, read_prompt


def generate(
    experiment: Experiment,
    prompt: str,
    options: dict[str, Any],
    *,
    save_state: str = '',
    load_state: str = '',
    out: TextIO | None = None,
) -> str:
    """Continues a prompt with the newest parameters of the workdir.

    Args:
      experiment: a trained experiment.
      prompt: text, or '@FILE'; all of it is read, however long.
      options: overrides of `config.generate`: length, temperature, top_k, top_p, seed.
      save_state: file to save the memory to at the end.
      load_state: file to load the memory from; the prompt then continues that text.
      out: where the text is streamed; default stdout.

    Returns:
      The generated text, without the prompt.

    Raises:
      UsageError: several processes, no checkpoint, or a memory of another model.
    """
    if jax.process_count() > 1:
        raise UsageError(
            f'--mode=generate with {jax.process_count()} processes: it runs in one; leave out '
            '--distributed.'
        )
    if save_state:
        state_file.require_writable(save_state)
    out = sys.stdout if out is None else out
    settings = experiment.config.generate.to_dict() | options
    params, step = experiment.restore_parameters()
    tokenizer = experiment.tokenizer
    model = experiment.evaluation_model
    plain = model.config.to_dict() | {'segment_length': model.segment_length}
    fresh = fresh_state(model, params, 1)
    tokens = tokenizer.encode(read_prompt(prompt))
    if load_state:
        state, pending = state_file.load(load_state, fresh, plain, params)
        reader = Reader(model, params, state, pending)
    else:
        reader = Reader(model, params, fresh, np.zeros((1, 0), np.int32))
        tokens = np.concatenate([[tokenizer.begin], tokens])
    if tokens.size:
        reader.read(tokens[None].astype(np.int32))
    print(f'[step {step}, {tokens.size} prompt tokens read]', file=sys.stderr, flush=True)
    stream, pieces = TextStream(tokenizer), []

    def emit(text: str) -> None:
        pieces.append(text)
        out.write(text)
        out.flush()

    for tokens in reader.write(
        settings['length'],
        vocab_size=tokenizer.vocab_size,
        temperature=settings['temperature'],
        top_k=settings['top_k'],
        top_p=settings['top_p'],
        seed=settings['seed'],
    ):
        emit(stream.text(tokens[0]))
    emit(stream.text(np.zeros((0,), np.int32), final=True))
    out.write('\n')
    if save_state:
        size = state_file.save(save_state, reader.state, reader.pending, plain, params)
        print(f'[memory saved: {save_state}, {size:,} bytes]', file=sys.stderr)
    return ''.join(pieces)
