"""`--mode=generate`: reads the whole prompt into memory, then streams the generated text."""

import sys
from typing import Any, TextIO

from longmem_jax.commands.generate_all import generate_all
from longmem_jax.commands.writer import Template, Writer
from longmem_jax.errors import UsageError, visible
from longmem_jax.experiment import Experiment
from longmem_jax.generation import memory_file as state_file
from longmem_jax.generation.text import (
    read_prompt,
    require_one_text,
    require_one_way,
    say_aside,
)


def from_flags(
    experiment: Experiment,
    *,
    prompt: str = '',
    prompts: str = '',
    output: str = '',
    save_state: str = '',
    load_state: str = '',
    template: Template | None = None,
    **options: Any,
) -> None:
    """`--mode=generate` with the options of the command line."""
    require_one_text(prompt, prompts, save_state)
    require_one_way(options)
    common: dict[str, Any] = dict(load_state=load_state, template=template)
    if output and not prompts:
        raise UsageError(
            f'--output={output}: is for --prompts; the continuation of a single prompt is printed, so '
            'send it to a file: ... > FILE.'
        )
    if prompts:
        generate_all(experiment, prompts, options, output=output, **common)
    else:
        generate(experiment, prompt, options, save_state=save_state, **common)


def generate(
    experiment: Experiment,
    prompt: str | bytes,
    options: dict[str, Any],
    *,
    save_state: str = '',
    load_state: str = '',
    template: Template | None = None,
    out: TextIO | None = None,
) -> str:
    """Continues a prompt with the newest parameters of the workdir.

    Args:
      prompt: bytes, text, or '@FILE'; all of it is read, however long.
      options: overrides of `config.generate`: length, temperature, top_k, top_p, seed, beams.
      save_state: file to save the memory to at the end.
      load_state: file to load the memory from; the prompt then continues that text.
      template: prompt to the text that is read in its place, such as that of a chat.
      out: where the text is streamed, on a terminal with control characters written out; default
        stdout.

    Returns:
      The generated text, without the prompt.

    Raises:
      UsageError: several processes, no checkpoint, or a memory of another model.
    """
    if save_state:
        state_file.require_writable(save_state)
    out = sys.stdout if out is None else out
    text = read_prompt(prompt)
    keeps, pieces = bool(save_state), []
    writer = Writer(experiment, options, load_state=load_state, template=template, keeps=keeps)
    reader, said = writer.read(text)
    say_aside(f'step {writer.step}, {said}')
    for piece in writer.pieces(reader):
        pieces.append(piece)
        # Another program that reads it gets it as it is.
        out.write(visible(piece) if out.isatty() else piece)
        out.flush()
    out.write('\n')
    if save_state:
        size = state_file.save(
            save_state, reader.state, reader.pending, writer.about, writer.params
        )
        say_aside(f'memory saved: {save_state}, {size:,} bytes')
    return ''.join(pieces)
