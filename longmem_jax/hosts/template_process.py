"""Writes the text of a chat template, in a process with limits: a template is a program of strangers.

It reads a `Job` as JSON from stdin and prints its answer as JSON: {'text': ...} or {'problem': ...}.
jinja2's sandbox keeps a template from files, modules and the insides of Python; the limits end one that
takes all time or memory.
"""

import contextlib
import datetime
import json
import resource
import sys
from typing import Any, NamedTuple


class Job(NamedTuple):
    """What to do.

    Attributes:
      source: the template.
      variables: by name; None = only look for mistakes of the template.
      seconds: of CPU time.
      memory: bytes.
      characters: of the text.
    """

    source: str
    variables: dict[str, Any] | None
    seconds: int = 10
    memory: int = 1 << 30
    characters: int = 1 << 26


class Refused(Exception):
    """A template called `raise_exception`: it does not accept these messages."""


def _environment() -> Any:
    """jinja2's sandbox with the functions that templates expect."""
    from jinja2 import ext, sandbox

    class Generation(ext.Extension):
        """`{% generation %}`, which marks what the assistant says for training, has no effect here."""

        tags = {'generation'}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(('name:endgeneration',), drop_needle=True)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def raise_exception(message: str) -> None:
        raise Refused(message)

    def strftime_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation]
    )
    environment.filters['tojson'] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment


def answer(job: Job) -> dict[str, Any]:
    """The answer to a job, here and without limits of time and memory."""
    try:
        template = _environment().from_string(job.source)
    except Exception as error:
        return {'problem': f'not a chat template ({_line(error)})'}
    if job.variables is None:
        return {'text': ''}
    try:
        pieces, left = [], job.characters
        for piece in template.generate(**job.variables):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                raise ValueError(f'a text of more than {job.characters:,} characters')
    except Refused as error:
        return {'problem': f'refuses these messages: {_line(error)}'}
    except Exception as error:
        return {'problem': f'fails on these messages ({type(error).__name__}: {_line(error)})'}
    return {'text': ''.join(pieces)}


def _line(error: BaseException) -> str:
    """The first line of a message, at most 200 characters."""
    return (str(error).splitlines() or [''])[0][:200]


def main() -> None:
    """See above."""
    job = Job(**json.load(sys.stdin))
    for limit, value in ((resource.RLIMIT_CPU, job.seconds), (resource.RLIMIT_AS, job.memory)):
        with contextlib.suppress(ValueError, OSError):  # some systems limit no memory
            resource.setrlimit(limit, (value, value))
    json.dump(answer(job), sys.stdout)


if __name__ == '__main__':
    main()
