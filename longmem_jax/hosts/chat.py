"""Chat templates of Hugging Face folders: messages to the text that a model was tuned on.

A template is a program, written by the makers of the folder. It runs in jinja2's sandbox, which keeps it
from files, modules and the insides of Python, with limits on its steps, its time and its output.
"""

import datetime
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longmem_jax.data.conventions import settings_of
from longmem_jax.errors import UsageError

MOST_STEPS = 200_000  # of loops and calls in one rendering
MOST_CHARACTERS = 1 << 26  # of a text, or entries of a list
MOST_MADE = 1 << 28  # of all that are made in one rendering
MOST_BITS = 4096  # of a whole number
MOST_SECONDS = 20.0  # of one rendering
# What templates use of jinja2's filters, and of the methods of texts; others may write any number of
# blanks, such as `center`. What `join`, `replace` and `indent` write is limited.
FILTERS = (
    'abs', 'attr', 'capitalize', 'count', 'd', 'default', 'dictsort', 'e', 'escape', 'first', 'float',
    'groupby', 'indent', 'int', 'items', 'join', 'last', 'length', 'list', 'lower', 'map', 'max', 'min',
    'reject', 'rejectattr', 'reverse', 'round', 'safe', 'select', 'selectattr', 'sort', 'string', 'sum',
    'title', 'trim', 'truncate', 'unique', 'upper', 'wordcount',
)  # fmt: skip
METHODS = (
    'capitalize', 'casefold', 'count', 'endswith', 'find', 'index', 'isalnum', 'isalpha', 'isdecimal',
    'isdigit', 'islower', 'isnumeric', 'isspace', 'istitle', 'isupper', 'join', 'lower', 'lstrip',
    'partition', 'removeprefix', 'removesuffix', 'replace', 'rfind', 'rindex', 'rpartition', 'rsplit',
    'rstrip', 'split', 'splitlines', 'startswith', 'strip', 'swapcase', 'title', 'upper',
)  # fmt: skip
MOST_INDENT = 16  # blanks
# What a template's own faults raise.
PYTHON = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class TooMuch(Exception):
    """A template took too many steps, or made too long a text."""


class Refused(Exception):
    """A template called `raise_exception`: it does not accept these messages."""


def _environment() -> Any:
    """A sandbox with the functions that templates expect, and a limit on their work."""
    try:
        import jinja2
        from jinja2 import ext, filters, nodes, sandbox, visitor
    except ImportError as error:
        raise UsageError(
            "--chat: chat templates need jinja2; pip install 'longmem_jax[chat]'."
        ) from error

    class Generation(ext.Extension):
        """`{% generation %}`, which marks what the assistant says for training: nothing here."""

        tags = {'generation'}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(('name:endgeneration',), drop_needle=True)

    class Counting(visitor.NodeTransformer):
        """Sends what a loop reads, and what `~` joins, through a filter of ours."""

        def visit_For(self, node: Any) -> Any:
            self.generic_visit(node)
            node.iter = self.through('counted', node.iter)
            return node

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            return self.through('joined', nodes.List(node.nodes, lineno=node.lineno))

        def through(self, name: str, node: Any) -> Any:
            return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    class Bounded(sandbox.ImmutableSandboxedEnvironment):
        """Counts the steps of loops and calls, and limits what operators make."""

        intercepted_binops = frozenset({'+', '*', '**', '%'})
        steps = made = 0
        until = math.inf

        def spend(self, steps: int = 1) -> None:
            self.steps += steps
            if self.steps > MOST_STEPS:
                raise TooMuch(f'more than {MOST_STEPS:,} steps')
            self.in_time()

        def in_time(self) -> None:
            if time.monotonic() > self.until:
                raise TooMuch(f'more than {MOST_SECONDS:g} seconds')

        def _parse(self, source: str, name: Any, filename: Any) -> Any:
            return Counting().visit(super()._parse(source, name, filename))

        def call(self, context: Any, function: Any, *inputs: Any, **options: Any) -> Any:
            self.spend()
            plain = getattr(function, '__wrapped__', function)  # the sandbox wraps .format()
            text, name = getattr(plain, '__self__', None), getattr(plain, '__name__', '')
            if isinstance(text, (bytes, int, float)) or (
                isinstance(text, str) and name not in METHODS
            ):
                raise TooMuch(f'.{name}() is not for templates')
            if isinstance(text, str) and name == 'replace':
                self.limit((len(text) + 1) * max(map(len, map(str, ('x', *inputs[1:2])))), name)
            if isinstance(text, str) and name == 'join' and inputs:
                inputs = (self.joinable(inputs[0], text), *inputs[1:])
            return super().call(context, function, *inputs, **options)

        def joinable(self, items: Iterable[Any], between: Any) -> list[str]:
            """The texts that are to be joined, unless that made too long a text."""
            items = [str(item) for item in counted(items)]
            self.limit(sum(map(len, items)) + len(items) * len(str(between)), 'join')
            return items

        def limit(self, size: int, name: str) -> None:
            self.made += size
            if size >= MOST_CHARACTERS or self.made >= MOST_MADE:
                raise TooMuch(f'{name!r} with too large a result')
            self.in_time()

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sizes = [len(x) if isinstance(x, (str, list, tuple)) else x for x in (left, right)]
            if operator == '*' and isinstance(left, (str, list, tuple)) != isinstance(
                right, (str, list, tuple)
            ):
                made = sizes[0] * sizes[1]
            elif operator == '*' and isinstance(left, int) and isinstance(right, int):
                made = 0
                if left.bit_length() + right.bit_length() > MOST_BITS:
                    raise TooMuch(f'a number of more than {MOST_BITS:,} bits')
            elif operator == '+' and isinstance(left, (str, list, tuple)):
                made = sum(sizes)
            elif operator == '%' and isinstance(left, str):
                raise TooMuch('text % values is not for templates')
            elif operator == '**':
                made = MOST_CHARACTERS if any(abs(x) > 64 for x in (left, right)) else 0
            else:
                made = 0
            self.limit(made, operator)
            return super().call_binop(context, operator, left, right)

    environment = Bounded(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation]
    )

    def counted(items: Iterable[Any]) -> Any:
        if isinstance(items, Sequence | Mapping):
            environment.spend(len(items))
            return items
        return _counting(items, environment.spend)

    def joined(items: list[Any]) -> str:
        texts = [str(item) for item in items]
        environment.limit(sum(map(len, texts)), '~')
        return ''.join(texts)

    def few(width: Any) -> Any:
        if (len(width) if isinstance(width, str) else width or 0) > MOST_INDENT:
            raise TooMuch(f"'indent' by more than {MOST_INDENT} blanks")
        return width

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=few(indent), **options)

    def indented(text: str, width: Any = 4, *inputs: Any, **options: Any) -> str:
        environment.limit(len(text) + MOST_INDENT * len(text.splitlines()), 'indent')
        return filters.do_indent(text, few(width), *inputs, **options)

    def join(items: Any, d: Any = '', attribute: Any = None) -> str:
        if attribute is not None:
            items = map(filters.make_attrgetter(environment, attribute), items)
        return str(d).join(environment.joinable(items, d))

    def replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
        environment.limit((len(str(text)) + 1) * max(len(str(new)), 1), 'replace')
        return str(text).replace(str(old), str(new), count)

    def total(items: Any, attribute: Any = None, start: Any = 0) -> Any:
        if not isinstance(start, int | float):
            raise TooMuch("'sum' of what are not numbers")
        return filters.sync_do_sum(environment, items, attribute, start)

    def raise_exception(message: str) -> None:
        raise Refused(message)

    def strftime_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    environment.filters = {name: environment.filters[name] for name in FILTERS}
    environment.filters.update(
        counted=counted, joined=joined, tojson=tojson, indent=indented, join=join, replace=replace,
        sum=total,
    )  # fmt: skip
    del environment.globals['lipsum']  # a text of any length
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    environment.faults = (jinja2.TemplateError, TooMuch, Refused, *PYTHON)
    return environment


def _counting(items: Iterable[Any], spend: Any) -> Iterator[Any]:
    for item in items:
        spend()
        yield item


class ChatTemplate:
    """The template of a folder.

    Attributes:
      where: its file, for messages.
      special: names of special tokens to their texts; see `data.conventions.SPECIAL`.
    """

    def __init__(self, source: str, where: str, special: Mapping[str, str]):
        """Compiles `source`.

        Raises:
          UsageError: no jinja2, or a template with a fault.
        """
        self.where, self.special = where, dict(special)
        self._environment = _environment()
        try:
            self._template = self._environment.from_string(source)
        except self._environment.faults as error:
            raise UsageError(f'{where}: not a chat template ({_line(error)}).') from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation, with the special tokens that the template writes.

        Args:
          messages: each with 'role' ('system', 'user', 'assistant') and 'content'.
          add_generation_prompt: end with what begins the assistant's next message.

        Raises:
          UsageError: the template refuses the messages, fails, or does too much.
        """
        self._environment.steps = self._environment.made = 0
        self._environment.until = time.monotonic() + MOST_SECONDS
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
                    raise TooMuch('its text has no end')
        except Refused as error:
            raise UsageError(f'{self.where}: refuses these messages: {_line(error)}') from error
        except self._environment.faults as error:
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
