"""Chat templates of Hugging Face folders: messages to the text that a model was tuned on.

A template is a program, written by the makers of the folder; `hosts.template_process` runs it.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longmem_jax.data import model_files
from longmem_jax.errors import UsageError
from longmem_jax.hosts import template_process
from longmem_jax.hosts.template_process import Job

END = '\u2021end of the last message\u2021'  # marks it while a template is run


def run(job: Job) -> dict[str, Any]:
    """The answer to a job, from a process with its limits; see `hosts.template_process`."""
    # By its file, which needs jinja2 alone, and without the current folder, which may have any module.
    command = [sys.executable, '-P', template_process.__file__]
    try:
        # CPU time has a limit; a process that waits uses none.
        ended = subprocess.run(
            command, input=json.dumps(job._asdict()), capture_output=True, text=True,
            timeout=60 + 10 * job.seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {'problem': f'has not ended after {60 + 10 * job.seconds} seconds'}
    if ended.returncode < 0:  # the signal of a limit
        return {'problem': f'takes more than {job.seconds} seconds or {job.memory >> 20:,} MiB'}
    if ended.returncode:
        return {'problem': f'cannot be run ({(ended.stderr.splitlines() or [""])[-1]})'}
    return json.loads(ended.stdout)


class ChatTemplate:
    """The template of a folder, with its special tokens by name; see `data.conventions.SPECIAL`."""

    def __init__(self, source: str, where: str, special: Mapping[str, str]):
        """Looks for mistakes in `source`.

        Raises:
          UsageError: no jinja2, or a template with a problem.
        """
        if importlib.util.find_spec('jinja2') is None:
            raise UsageError("chat templates need jinja2: pip install 'longmem_jax[chat]'.")
        self.where, self.special, self.source = where, dict(special), source
        self._text(None)

    def _text(self, variables: dict[str, Any] | None) -> str:
        answer = run(Job(self.source, variables))
        if 'problem' in answer:
            raise UsageError(f'{self.where}: {answer["problem"]}.')
        return answer['text']

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation, with the special tokens that the template writes.

        Args:
          messages: each with 'role' ('system', 'user', 'assistant') and 'content'.
          add_generation_prompt: end with what begins the assistant's next message.

        Raises:
          UsageError: the template refuses the messages, fails, writes too much, or takes too much time
            or memory.
        """
        return self._text(
            dict(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self.special,
            )
        )

    def render_open(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a conversation up to the end of the last message's own text, to be continued.

        Raises:
          UsageError: as in `render`, or the template does not write that message.
        """
        last = dict(messages[-1], content=messages[-1]['content'] + END + ' ')
        text = self.render([*messages[:-1], last], add_generation_prompt=False)
        if END not in text:
            raise UsageError(
                f'{self.where}: leaves out the last message, so that it cannot be continued.'
            )
        before, after = text[: text.rindex(END)], text[text.rindex(END) + len(END) :]
        # A template that strips messages has cut the blank behind the mark, too.
        return before if after.startswith(' ') else before.rstrip()


def folder_of(data: Any, option: str) -> Path:
    """The folder or GGUF file of the tokenizer, where a chat template can be.

    Args:
      data: `config.data`.
      option: that asks for a template, for messages.

    Raises:
      UsageError: it is neither.
    """
    given = data.tokenizer.path
    path = Path(given).expanduser()
    if data.tokenizer.kind == 'bytes':
        raise UsageError(
            f'{option}: this run reads bytes and has no chat template; leave out {option}.'
        )
    if not given or not model_files.is_model(path):  # '' would be the folder where we are
        raise UsageError(
            f'{option} with config.data.tokenizer.path = {given!r}: a chat template is in the '
            'folder or the GGUF file of a pretrained model; set the path to that folder, or leave out '
            f'{option}.'
        )
    return path


def load_template(folder: Path, special: Mapping[str, str], option: str = '--chat') -> ChatTemplate:
    """The chat template of a folder, or of a GGUF file.

    `chat_template.jinja`, or else that of `tokenizer_config.json`. `special` are texts of its
    special tokens, `Conventions.special`; `option` asked for it.

    Raises:
      UsageError: the folder has none, or one that cannot be read.
    """
    settings = model_files.settings(folder, 'tokenizer_config.json')
    path = folder / 'chat_template.jinja'
    if path.exists():
        try:
            return ChatTemplate(path.read_text(encoding='utf-8'), str(path), special)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f'{path}: cannot be read ({error}).') from error
    where = f'{folder / "tokenizer_config.json"}, chat_template'
    source = settings.get('chat_template')
    if isinstance(source, list):  # several, by name
        named = {
            str(one.get('name')): one.get('template') for one in source if isinstance(one, dict)
        }
        source = named.get('default')
    if source is None:
        raise UsageError(
            f'{option}: {folder} has no chat template (chat_template.jinja, or chat_template in '
            f'tokenizer_config.json): this model was not tuned on chats; leave out {option}.'
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
