"""`--mode=inspect`: one page that shows what a memory does for a text."""

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np

from longmem_jax.commands import modes
from longmem_jax.commands.score import Scorer
from longmem_jax.commands.start_from import of_host
from longmem_jax.config import checks
from longmem_jax.config.saved import saved_config
from longmem_jax.devices.sharding import replicated
from longmem_jax.errors import UsageError, visible
from longmem_jax.evaluation.result import memory_lengths
from longmem_jax.experiment import Experiment
from longmem_jax.files import require_writable, write
from longmem_jax.generation.text import read_prompt, require_other
from longmem_jax.microscope.page import page, page_data
from longmem_jax.microscope.reading import Reading, read_text
from longmem_jax.reporting.waiting import Waiting
from longmem_jax.training.metrics import LN2

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
    beside: str = '',
    command: str = '',
    out: TextIO | None = None,
) -> Reading:
    """Reads a text with the newest parameters of a run and writes the page.

    Args:
      prompt: the text, or '@FILE'.
      output: the page to write.
      reads: the last tokens for which what they read is kept; more make the page larger.
      load_state: file of a memory whose text the prompt continues.
      beside: workdir of another run with the same tokenizer, to show next to this one; '' = none.
      command: how it was called, for the page.

    Returns:
      What is on the page of this run.

    Raises:
      UsageError: no text, no checkpoint, a memory of another model, a run beside it that does not fit,
        or a file that cannot be written.
    """
    if not output:
        raise UsageError('--output= is missing: the page to write, such as --output=page.html.')
    if beside and load_state:
        raise UsageError(
            f'--load_state={load_state}: not with --beside={beside}, since a memory is of one model; '
            'leave one of the two out.'
        )
    require_writable(output, f'--output={output}')
    if prompt.startswith('@'):
        require_other(output, prompt[1:])
    runs = [experiment, *([_run_beside(experiment, beside)] if beside else [])]
    text = read_prompt(prompt)
    found = [_read(run, text, prompt, reads, load_state, command) for run in runs]
    reading, data = found[0]
    total, notes = in_short(reading), data['notes']
    name = Path(prompt[1:]).name if prompt.startswith('@') else 'a text'
    kinds = ', '.join(dict.fromkeys(experiment.evaluation_model.config.attention))
    title = f'What the memory did: {name} ({kinds})'
    if beside:
        names = [visible(run.workdir.absolute().name) for run in runs]
        if names[0] == names[1]:
            names = [visible(str(run.workdir)) for run in runs]
        notes = []
        for run, (read, shown) in zip(names, found, strict=True):
            shown |= {'name': run, 'total': in_short(read)}
            notes += [f'{run}: {line}' for line in (shown['total'], *shown['notes'])]
        other, data['beside'] = found[1]
        of_first = len(experiment.tokenizer.decode(reading.tokens[:1]))
        total = compared(names, reading, other, len(text), of_first)
        title = f'Two memories over {name}: {" and ".join(names)}'
    target = Path(output).expanduser()
    try:
        write(target, page(title, total, data))
    except OSError as error:
        raise UsageError(f'--output={output}: cannot be written ({error}).') from error
    size = target.stat().st_size / 1e6
    for line in (total, *notes, f'page: {output}, {size:.1f} MB'):
        print(line, file=out or sys.stdout)
    return reading


def _run_beside(experiment: Experiment, workdir: str) -> Experiment:
    """Opens the run to show next to this one, before anything is read.

    Raises:
      UsageError: no run with a checkpoint, one that reads no texts, or one with another tokenizer.
    """
    config = saved_config(workdir)
    # No option sets those of the second run, which may be of another machine.
    config.mesh = experiment.config.mesh
    config.model.kernels = experiment.config.model.kernels
    checks.require_runnable(config, experiment.mesh.size)
    modes.choose('inspect', config, {})
    other = Experiment(config, Path(workdir).expanduser(), experiment.mesh)
    if not (other.checkpoint_steps() or of_host(config)):  # before a vocabulary is learned for it
        raise UsageError(
            f'--beside={workdir}: no checkpoint there; give the workdir of a trained run.'
        )
    ours, theirs = (run.tokenizer.fingerprint() for run in (experiment, other))
    if ours != theirs:
        raise UsageError(
            f'--beside={workdir}: its tokenizer is {theirs}, that of --workdir={experiment.workdir} is '
            f'{ours}; losses of tokens can only be compared where both runs have the same one.'
        )
    return other


def _read(
    experiment: Experiment, text: bytes, prompt: str, reads: int, load_state: str, command: str
) -> tuple[Reading, dict[str, Any]]:
    """Reads the text with the newest parameters of a run; what the page shows of it."""
    scorer = Scorer(experiment, load_state, mode='inspect')
    tokens = np.asarray(scorer.tokenizer.encode(text), np.int32)
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
    config = scorer.model.config
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
    return reading, page_data(reading, scorer.tokenizer, config, facts, notes_of(reading))


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


def compared(
    names: list[str], first: Reading, second: Reading, num_bytes: int, of_first: int
) -> str:
    """Bits per byte of two runs on the same text of `num_bytes`, and which one is better.

    A first token without a loss in one of them does not count; it has `of_first` bytes.
    """
    nats = np.stack([first.nats, second.nats]).astype(np.float64)
    both = np.all(np.isfinite(nats), axis=0)
    num_bytes -= 0 if both[0] else of_first
    nats = nats[:, both]
    bits = nats.sum(axis=1) / LN2 / max(num_bytes, 1)
    best, worst = np.argsort(bits, kind='stable')
    wins = int((nats[best] < nats[worst]).sum())
    sizes = ', '.join(
        f'{name} {each:.4f} bits per byte' for name, each in zip(names, bits, strict=True)
    )
    if bits[best] == bits[worst]:
        return f'{sizes}: both are equal.'
    better = f'{names[best]} is better by {bits[worst] - bits[best]:.4f} over all'
    return f'{sizes}: {better}, and at {wins:,} of {nats.shape[1]:,} tokens.'
