"""`--mode=generate --chat`: the prompt is what a user says, written as a chat template says."""

from typing import Any

from longmem_jax.commands import generate
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
    folder, conventions = (
        chats.folder_of(experiment.config.data, '--chat'),
        experiment.conventions(),
    )
    template = chats.load_template(folder, conventions.special)
    if not conventions.ends:
        raise UsageError(
            f'--chat: {folder} names no token that ends an answer (eos_token of '
            'tokenizer_config.json, or eos_token_id of generation_config.json).'
        )

    def written(text: bytes) -> bytes:
        return template.render(chats.read_messages(text.decode('utf-8', 'replace'))).encode()

    return written
