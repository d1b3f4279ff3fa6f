"""`--mode=generate`: reads the whole prompt into memory, then streams the generated text."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation import chat as chats
from longmem_jax.generation import memory_file as state_file
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.generation.text import TextStream, escaped, read_prompt


def generate(
    experiment: Experiment,
    prompt: str,
    options: dict[str, Any],
    *,
    save_state: str = '',
    load_state: str = '',
    chat: bool = False,
    out: TextIO | None = None,
) -> str:
    """Continues a prompt with the newest parameters of the workdir.

    Args:
      experiment: a trained experiment.
      prompt: text, or '@FILE'; all of it is read, however long.
      options: overrides of `config.generate`: length, temperature, top_k, top_p, seed, beams.
      save_state: file to save the memory to at the end.
      load_state: file to load the memory from; the prompt then continues that text.
      chat: the prompt is what a user says, or a JSON list of messages, and is written as the chat
        template of the tokenizer's folder says; the answer ends where the model ends it.
      out: where the text is streamed, on a terminal with control characters written out; default
        stdout.

    Returns:
      The generated text, without the prompt.

    Raises:
      UsageError: several processes, no checkpoint, no chat template, or a memory of another model.
    """
    sharding.require_one_process('--mode=generate')
    if save_state:
        state_file.require_writable(save_state)
    out = sys.stdout if out is None else out
    settings = experiment.config.generate.to_dict() | options
    params, step = newest_parameters(experiment, _say)
    tokenizer = experiment.tokenizer
    model = experiment.evaluation_model
    plain = model.config.to_dict() | {'segment_length': model.segment_length}
    fresh = fresh_state(model, params, 1)
    text, ends = read_prompt(prompt), ()
    if chat:
        folder = _chat_folder(experiment)
        messages = chats.read_messages(text.decode('utf-8', 'replace'))
        text = chats.load_template(folder).render(messages).encode()
        ends = chats.end_tokens(folder, tokenizer)
    tokens = tokenizer.encode(text)
    if load_state:
        state, pending = state_file.load(load_state, fresh, plain, params)
        reader = Reader(model, params, state, pending)
    else:
        reader = Reader(model, params, fresh, np.zeros((1, 0), np.int32))
        # A chat template writes the first token itself, if the model has one.
        tokens = tokens if chat and tokens.size else np.concatenate([[tokenizer.begin], tokens])
    if tokens.size:
        reader.read(tokens[None].astype(np.int32))
    print(f'[step {step}, {tokens.size} prompt tokens read]', file=sys.stderr, flush=True)
    stream, pieces = TextStream(tokenizer), []

    def emit(text: str) -> None:
        pieces.append(text)
        # Bytes stay as they are where another program reads them.
        out.write(escaped(text) if out.isatty() else text)
        out.flush()

    for tokens in _continuation(reader, settings, tokenizer, ends):
        emit(stream.text(tokens))
    emit(stream.text(np.zeros((0,), np.int32), final=True))
    out.write('\n')
    if save_state:
        size = state_file.save(save_state, reader.state, reader.pending, plain, params)
        print(f'[memory saved: {save_state}, {size:,} bytes]', file=sys.stderr)
    return ''.join(pieces)


def _say(line: str) -> None:
    print(f'[{line}]', file=sys.stderr)


def _chat_folder(experiment: Experiment) -> Path:
    """The folder of the tokenizer; raises `UsageError` if it is none."""
    path = Path(experiment.config.data.tokenizer.path).expanduser()
    if experiment.config.data.tokenizer.kind == 'bytes' or not path.is_dir():
        raise UsageError(
            f'--chat with config.data.tokenizer.path = {str(path)!r}: a chat template is in the folder '
            'of a pretrained model; set the path to that folder, or leave out --chat.'
        )
    return path


def _continuation(
    reader: Reader, settings: dict[str, Any], tokenizer: Any, ends: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """Tokens as they are found, int32 [n], up to the first of `ends`, which is not among them."""
    common = dict(vocab_size=tokenizer.vocab_size)
    if settings['beams']:
        yield reader.search(
            settings['length'],
            end=ends[0] if ends else tokenizer.begin,
            beams=settings['beams'],
            length_penalty=settings['length_penalty'],
            **common,
        )[0]
        return
    drawn = ('temperature', 'top_k', 'top_p', 'seed')
    # One at a time where the text may end, so that nothing after the end is remembered.
    common |= {name: settings[name] for name in drawn} | (dict(chunk=1) if ends else {})
    for tokens in reader.write(settings['length'], **common):
        if ends and tokens[0, 0] in ends:
            return
        yield tokens[0]
