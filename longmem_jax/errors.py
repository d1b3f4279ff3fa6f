"""The error for mistakes that the user can fix: printed without a traceback, exit code 2.

What is printed may quote anybody's file, so texts go to a terminal through `visible` only.
"""

import contextlib
import difflib
import errno
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

MESSAGE = 2_900  # characters of an error
LONGEST = 1 << 16  # characters of anything else
# Control characters and what changes the direction of a line; tabs and line ends are harmless.
_OBEYED = re.compile('[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]')


def visible(text: str, longest: int | None = None) -> str:
    r"""The text with every such character as its escape, `\x1b` for ESC; half characters too.

    Args:
      text: of anybody.
      longest: characters that are kept; None = all.
    """
    more = len(text) - longest if longest is not None else 0
    text = _OBEYED.sub(lambda found: found[0].encode('unicode_escape').decode(), text[:longest])
    text = text.encode('utf-8', 'backslashreplace').decode()
    return f'{text} ... ({more:,} more characters)' if more > 0 else text


def said_last(text: str) -> str:
    """What a message says in the end, if a traceback is in it."""
    last = list(re.finditer(r'^[\w.]+(?:Error|Exception)\b.*', text, re.MULTILINE))
    if 'Traceback' in text and last:
        text = text[last[-1].start() :]
    return re.sub(r'^longmem_jax\.(\w+\.)+', '', text).strip()


def say(text: str, out: TextIO | None = None) -> None:
    """Prints a line of which parts may be of anybody's making, to stdout or `out`."""
    print(visible(text, LONGEST), file=out or sys.stdout)


def number_of(number: int, noun: str) -> str:
    """'1 token', '2,048 tokens'."""
    return f'{number:,} {noun}{"s" * (number != 1)}'


class UsageError(ValueError):
    """A problem in the configuration, the data or the command line.

    The message says what was given, what is allowed and what to do next. `main` prints it and
    exits with code 2; every other exception is a bug in the library and keeps its traceback.
    """

    def __init__(self, message: str):
        """`message`: shown as by `visible`, at most `MESSAGE` characters of it."""
        # The reader of config files makes this error again, of the tracebacks of all that led to it.
        text = str(message)
        if 'Traceback' in text:
            text = said_last(text).removeprefix('UsageError: ')
        super().__init__(visible(text, MESSAGE))


def require_type(name: str, given: Any, types: Any, needed: str) -> None:
    """Raises `UsageError` unless an argument has one of the types; `needed`: what to give."""
    if not isinstance(given, types):
        shown = visible(repr(given), 60)
        raise UsageError(f'{name} = {shown} is of the type {type(given).__name__}: give {needed}.')


@contextlib.contextmanager
def require_extra(name: str, asker: str = '') -> Iterator[None]:
    """Imports what needs packages of an extra; raises `UsageError` with the extra if one is missing.

    `asker`: what was given that needs them, for the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or '').startswith('longmem_jax'):
            raise
        missing = (
            f'needs the package {error.name}' if asker else f'The package {error.name} is missing'
        )
        raise UsageError(
            f"{asker} {missing}: pip install 'longmem_jax[{name}]'.".lstrip()
        ) from None  # the message has all


def command_needs(name: str, package: str) -> None:
    """Ends `python -m` with a message if `package` of the extra `name` cannot be imported.

    Called by a package that has commands: Python imports it before the command itself.
    """
    if sys.argv[:1] != ['-m']:  # so it is while `python -m` looks for its module
        return
    try:
        with require_extra(name):
            importlib.import_module(package)
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


# Names of other libraries, and what stands for them here.
ELSEWHERE = {
    name: ours
    for ours, names in {
        'd_model': 'hidden_size model_dim embed_dim n_embd emb_dim dim width',
        'd_feed_forward': 'intermediate_size ffn_dim d_ff n_inner mlp_dim',
        'num_layers': 'num_hidden_layers n_layer n_layers depth',
        'num_heads': 'num_attention_heads n_head n_heads',
        'num_kv_heads': 'num_key_value_heads n_kv_heads',
        'rotary_base': 'rope_theta rope_base',
        'segment_length': 'block_size seq_len seq_length sequence_length context_length max_length',
        'num_lanes': 'batch_size per_device_train_batch_size global_batch_size',
        'num_steps': 'max_steps steps train_steps max_iters',
        'learning_rate': 'lr peak_lr',
        'clip_norm': 'max_grad_norm grad_clip gradient_clipping',
        'accumulate_steps': 'gradient_accumulation_steps grad_accum',
        'gated_delta_net': 'gdn gated_deltanet',
        'retnet': 'retention',
        'sinks': 'streaming_llm streamingllm attention_sinks',
    }.items()
    for name in names.split()
}


def nearest(given: Any, allowed: Iterable[Any]) -> str:
    """`did you mean 'x'? ` with the valid name nearest to `given`, whatever its letters' case; or ''."""
    names, text = {str(name).casefold(): str(name) for name in allowed}, str(given).casefold()
    if (ours := ELSEWHERE.get(text)) in names:
        return f'did you mean {names[ours]!r}? '
    # Of three letters too: part of a name, with another ending, or its letters in another order;
    # or a name and more.
    part = text[: max(len(text) - 1, 4)]
    related = [n for n in names if len(text) > 2 and (part in n or sorted(text) == sorted(n))]
    related += [n for n in names if len(n) > 3 and n in text]
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.75)
    near = near or difflib.get_close_matches(text, related, n=1, cutoff=0)
    return f'did you mean {names[near[0]]!r}? ' if near else ''


def unknown(what: str, given: Any, allowed: Iterable[Any], others: Iterable[Any] = ()) -> str:
    """`what = 'x': ...`, with all valid names and the nearest of them, or else of `others`."""
    allowed = tuple(allowed)
    near = nearest(given, allowed) or nearest(given, others)
    shown = ', '.join(str(each) or "''" for each in allowed)
    return f'{what} = {given!r}: {near}allowed are {shown}'


def no_field(of: str, given: str, fields: Iterable[str], others: Iterable[str] = ()) -> str:
    """`of has no field 'x': ...`, with all fields and the nearest of them, or else of `others`."""
    fields = sorted(fields)
    near = nearest(given, fields) or nearest(given, others)
    return f'{of} has no field {given!r}: {near}it has {", ".join(fields)}'


FULL = (errno.ENOSPC, errno.EDQUOT)
LOCKED = (errno.EROFS, errno.EACCES, errno.EPERM)
# Of a disk, of a mounted folder of another machine, or of the limits of the system.
FAILING = (
    errno.EIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.ENODEV,
    errno.ENOLCK,
    errno.EMFILE,
    errno.ENFILE,
)


def of_disk(error: BaseException) -> int:
    """Number (`errno`) of the problem of a disk that an error is; 0 = it is another.

    Libraries that raise no `OSError`, such as tensorstore, quote the words of the system.
    """
    numbers = (*FULL, *LOCKED, *FAILING)
    if isinstance(error, OSError):
        return error.errno if error.errno in numbers else 0
    text = str(error)
    return next((number for number in numbers if os.strerror(number) in text), 0)


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Turns problems of a disk, wherever a file is read or written, into `UsageError`."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if not (number := of_disk(error)):
            raise
        name = error.filename if isinstance(error, OSError) else None
        raise UsageError(
            f'{name if isinstance(name, str) else "a file"}: cannot be read or written '
            f'({os.strerror(number)}). Correct this and run the same command.'
        ) from error


SPARING = (
    'To need less: fewer lanes (--config.train.num_lanes, --config.evaluate.num_lanes), shorter '
    'segments, --config.model.dtype=bfloat16; with a large vocabulary --config.model.loss_blocks=8; '
    'in training --config.model.remat=dots_saveable or --config.train.remat=True. docs/training.md has '
    'more.'
)
# As said on CPUs, GPUs and TPUs. Limits of a kernel or of a message between processes are others.
_NO_ROOM = re.compile(
    r'^.*(out of memory(?! in memory space (?!hbm))|(failed|attempting) to allocate|allocating dev).*$',
    re.IGNORECASE | re.MULTILINE,
)


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turns a device that has too little memory for a program or its arrays into `UsageError`.

    So too where this machine has too little for what NumPy prepares.
    """
    try:
        yield
    except MemoryError as error:
        said = str(error)[:200] or 'nothing is left'
        raise UsageError(f'Too little memory on this machine ({said}). {SPARING}') from error
    except Exception as error:
        text = str(error)
        found = _NO_ROOM.search(text) if 'RESOURCE_EXHAUSTED' in text else None
        if not found or type(error).__name__ != 'JaxRuntimeError':
            raise
        said = found[0].rpartition('RESOURCE_EXHAUSTED: ')[2].strip(' .')[:200]
        raise UsageError(f'Too little memory on the device ({said}). {SPARING}') from error
