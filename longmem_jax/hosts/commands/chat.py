"""`--mode=generate --chat`: the prompt is what a user says, written as a chat template says."""

from pathlib import Path
from typing import Any

from longmem_jax.commands import generate
from longmem_jax.data import model_files
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.hosts import chat as chats


def from_flags(experiment: Experiment, *, chat: bool = True, **options: Any) -> None:
    """`--mode=generate` with the options of the command line, as a chat."""
    generate.from_flags(experiment, template=template_of(experiment) if chat else None, **options)


def template_of(experiment: Experiment) -> generate.Template:
    """What a user says, or a JSON list of messages, to the text that the model reads.

    It is that of the chat template of the tokenizer's folder; an answer ends where the model ends it.

    Raises:
      UsageError: there is no chat template, or no token that ends an answer.
    """
    folder, conventions = _chat_folder(experiment), experiment.conventions()
    template = chats.load_template(folder, conventions.special)
    if not conventions.ends:
        raise UsageError(
            f'--chat: {folder} names no token that ends an answer (eos_token of '
            'tokenizer_config.json, or eos_token_id of generation_config.json).'
        )

    def written(text: bytes) -> bytes:
        return template.render(chats.read_messages(text.decode('utf-8', 'replace'))).encode()

    return written


def _chat_folder(experiment: Experiment) -> Path:
    """The folder or GGUF file of the tokenizer; raises `UsageError` if it is neither."""
    path = Path(experiment.config.data.tokenizer.path).expanduser()
    if experiment.config.data.tokenizer.kind == 'bytes':
        raise UsageError('--chat: this run reads bytes and has no chat template; leave out --chat.')
    if not model_files.is_model(path):
        raise UsageError(
            f'--chat with config.data.tokenizer.path = {str(path)!r}: a chat template is in the folder '
            'or the GGUF file of a pretrained model; set the path to that folder, or leave out --chat.'
        )
    return path
