"""Chat templates of Hugging Face folders: messages to the text that a model was tuned on.

A template is a program, written by the makers of the folder. It runs in jinja2's sandbox, which keeps it
from files, modules and the insides of Python, as in transformers. Its time has no limit but Ctrl-C.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longmem_jax.data.conventions import settings_of
from longmem_jax.errors import UsageError

MOST_CHARACTERS = 1 << 26  # of a rendered text
# Errors of a template itself, in addition to jinja2's.
PYTHON = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class Refused(Exception):
    """A template called `raise_exception`: it does not accept these messages."""


def _environment() -> tuple[Any, tuple[type[Exception], ...]]:
    """jinja2's sandbox with the functions that templates expect, and the errors of templates."""
    try:
        from jinja2 import TemplateError, ext, sandbox
    except ImportError as error:
        raise UsageError(
            "--chat: chat templates need jinja2; pip install 'longmem_jax[chat]'."
        ) from error

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
    return environment, (TemplateError, Refused, *PYTHON)


class ChatTemplate:
    """The template of a folder, with its special tokens by name; see `data.conventions.SPECIAL`."""

    def __init__(self, source: str, where: str, special: Mapping[str, str]):
        """Compiles `source`.

        Raises:
          UsageError: no jinja2, or a template with a problem.
        """
        self.where, self.special = where, dict(special)
        environment, self._errors = _environment()
        try:
            self._template = environment.from_string(source)
        except self._errors as error:
            raise UsageError(f'{where}: not a chat template ({_line(error)}).') from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation, with the special tokens that the template writes.

        Args:
          messages: each with 'role' ('system', 'user', 'assistant') and 'content'.
          add_generation_prompt: end with what begins the assistant's next message.

        Raises:
          UsageError: the template refuses the messages, fails, or writes too much.
        """
        try:
            pieces, size = [], 0
            for piece in self._template.generate(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self.special,
            ):
                pieces.append(piece)
                size += len(piece)
                if size > MOST_CHARACTERS:
                    raise ValueError(f'a text of more than {MOST_CHARACTERS:,} characters')
        except Refused as error:
            raise UsageError(f'{self.where}: refuses these messages: {_line(error)}') from error
        except self._errors as error:
            raise UsageError(
                f'{self.where}: fails on these messages ({type(error).__name__}: {_line(error)}).'
            ) from error
        return ''.join(pieces)


def _line(error: BaseException) -> str:
    """The first line of a message, at most 200 characters."""
    return (str(error).splitlines() or [''])[0][:200]


def load_template(folder: Path, special: Mapping[str, str]) -> ChatTemplate:
    """The chat template of a folder.

    `chat_template.jinja`, or else that of `tokenizer_config.json`. `special` are texts of its
    special tokens, `Conventions.special`.

    Raises:
      UsageError: the folder has none, or one that cannot be read.
    """
    settings = settings_of(folder / 'tokenizer_config.json')
    path = folder / 'chat_template.jinja'
    if path.exists():
        try:
            return ChatTemplate(path.read_text(encoding='utf-8'), str(path), special)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f'{path}: cannot be read ({error}).') from error
    where, source = (
        f'{folder / "tokenizer_config.json"}, chat_template',
        settings.get('chat_template'),
    )
    if isinstance(source, list):  # several, by name
        named = {
            str(one.get('name')): one.get('template') for one in source if isinstance(one, dict)
        }
        source = named.get('default')
    if source is None:
        raise UsageError(
            f'--chat: {folder} has no chat template (chat_template.jinja, or chat_template in '
            'tokenizer_config.json): this model was not tuned on chats; leave out --chat.'
        )
    if not isinstance(source, str):
        raise UsageError(f'{where}: must be text, or a list with a template named default.')
    return ChatTemplate(source, where, special)


def read_messages(prompt: str) -> list[dict[str, str]]:
    """Messages of a prompt: a JSON list of them as it is, any other text as one of the user.

    Raises:
      UsageError: a JSON list whose entries are not messages.
    """
    try:
        given = json.loads(prompt) if prompt.lstrip().startswith('[') else None
    except (ValueError, RecursionError):  # a text that begins with a bracket
        given = None
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given) or not given:
        return [{'role': 'user', 'content': prompt}]
    for number, message in enumerate(given):
        if not all(isinstance(message.get(field), str) for field in ('role', 'content')):
            raise UsageError(
                f'--prompt: message {number} needs the texts "role" and "content", got '
                f'{json.dumps(message, ensure_ascii=False)[:100]}'
            )
    return given
