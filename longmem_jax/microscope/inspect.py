"""`--mode=inspect`: one page that shows what a memory does for a text."""

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np

from longmem_jax.commands.score import Scorer
from longmem_jax.devices.sharding import replicated
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.result import memory_lengths
from longmem_jax.experiment import Experiment
from longmem_jax.files import require_writable, write
from longmem_jax.generation.text import read_prompt
from longmem_jax.microscope.page import page, page_data
from longmem_jax.microscope.reading import Reading, read_text
from longmem_jax.reporting.waiting import Waiting

NO_MEMORY = 'This model carries no memory between segments: all gains are 0.'
SHOWN = 300  # characters of the command on the page


def from_flags(
    experiment: Experiment,
    *,
    prompt: str = '',
    prompts: str = '',
    output: str = '',
    save_state: str = '',
    **options: Any,
) -> None:
    """`--mode=inspect` with the options of the command line."""
    if prompts or save_state:
        raise UsageError(
            '--prompts, --save_state: not with --mode=inspect, which shows one text: give --prompt.'
        )
    inspect(experiment, prompt, output, command=shlex.join(sys.argv[1:]), **options)


def inspect(
    experiment: Experiment,
    prompt: str,
    output: str,
    *,
    reads: int = 2000,
    load_state: str = '',
    command: str = '',
    out: TextIO | None = None,
) -> Reading:
    """Reads a text with the newest parameters of a run and writes the page.

    Args:
      prompt: the text, or '@FILE'.
      output: the page to write.
      reads: the last tokens for which what they read is kept; more make the page larger.
      load_state: file of a memory whose text the prompt continues.
      command: how it was called, for the page.

    Returns:
      What is on the page.

    Raises:
      UsageError: no text, no checkpoint, a memory of another model, or a file that cannot be written.
    """
    if not output:
        raise UsageError('--output= is missing: the page to write, such as --output=page.html.')
    require_writable(output, f'--output={output}')
    scorer = Scorer(experiment, load_state, mode='inspect')
    tokens = np.asarray(scorer.tokenizer.encode(read_prompt(prompt)), np.int32)
    if not len(tokens):
        raise UsageError('the text to inspect is empty: give --prompt=TEXT, or --prompt=@FILE.')
    scorer.fit(len(scorer.before) + len(tokens))
    # Placed as the parameters are, or the second segment would be compiled again.
    state, fresh = jax.device_put((scorer.state, scorer.fresh), replicated(experiment.mesh))
    waiting = Waiting('Reading', len(tokens), 'tokens', out=sys.stderr)
    with contextlib.closing(waiting):
        reading = read_text(
            scorer.model,
            scorer.params,
            state,
            fresh,
            scorer.before,
            tokens,
            reads=reads,
            report=waiting.update,
        )
    notes = notes_of(reading)
    config, total = scorer.model.config, in_short(reading)
    facts = {
        'model': f'{config.num_layers} layers of width {config.d_model}, kind {config.kind}',
        'memory': memory_lengths(config),
        'segments': f'{reading.length} tokens',
        'step': f'{scorer.step:,}',
        'run': str(experiment.workdir),
        'text': prompt if prompt.startswith('@') else 'given in the command',
        'begins with': f'the memory in {load_state}' if load_state else 'an empty memory',
        'without the memory': 'the same model, its memory reset before every segment',
        'command': command[:SHOWN] + ('…' if len(command) > SHOWN else ''),
    }
    name = Path(prompt[1:]).name if prompt.startswith('@') else 'a text'
    names = ', '.join(dict.fromkeys(config.attention))
    title = f'What the memory did: {name} ({names})'
    written = page(title, total, page_data(reading, scorer.tokenizer, config, facts, notes))
    target = Path(output).expanduser()
    try:
        write(target, written)
    except OSError as error:
        raise UsageError(f'--output={output}: cannot be written ({error}).') from error
    size = target.stat().st_size / 1e6
    for line in (total, *notes, f'page: {output}, {size:.1f} MB'):
        print(line, file=out or sys.stdout)
    return reading


def notes_of(reading: Reading) -> list[str]:
    """What a reader of the page must know."""
    notes = []
    if not jax.tree.leaves(reading.state):
        notes.append(NO_MEMORY)
    if not reading.layers:
        notes.append('No layer has a view: there are the losses and the raw state only.')
    elif reading.reads < len(reading.tokens):
        notes.append(
            f'What tokens read is kept for the last {reading.reads:,} of {len(reading.tokens):,} '
            '(--reads).'
        )
    return notes


def in_short(reading: Reading) -> str:
    """What the memory gained in all."""
    scored = np.isfinite(reading.nats)
    gained = float(np.nansum(reading.gain, dtype=np.float64))
    total, without = (
        float(np.nansum(nats, dtype=np.float64)) for nats in (reading.nats, reading.without)
    )
    share = f' ({gained / without:.1%})' if without else ''
    verb = 'saves' if gained >= 0 else 'costs'
    return (
        f'The memory {verb} {abs(gained):,.2f} of {without:,.2f} nats{share} on '
        f'{int(scored.sum()):,} tokens: {total:,.2f} are left.'
    )
