"""`config.train.start_from` = a pretrained model: its folder, its GGUF file, or its name on the hub."""

import glob
from collections.abc import Callable
from typing import Any

from longmem_jax.commands.start_from import Start, require_same_files
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.hosts import hosts
from longmem_jax.hosts.model_fields import differences
from longmem_jax.memory.registry import used
from longmem_jax.models.kinds import KINDS
from longmem_jax.untrusted.gguf_file import is_gguf

# Fields in which a model may differ from the host that it begins with: what a memory needs.
OF_MEMORY = frozenset(
    (
        'attention', 'feed_forward', 'beside', 'around', 'position', 'num_positions',
        'positions_restart', 'token_shift', 'rotary_factors',  # those of LongRoPE for a context
    )
)  # fmt: skip


def parameters(experiment: Experiment, source: str, say: Callable[[str], None]) -> Any:
    """The parameters of a pretrained model.

    Raises:
      UsageError: no such model, or `config.model` computes something else.
    """
    host, model = hosts.find(source), experiment.config.model
    replaced = {*host.plain.attention, *host.plain.feed_forward} - {*model.feed_forward}
    added = {*used(model)} - {*host.plain.feed_forward}
    beyond = KINDS[model.kind].beyond_host
    differing = differences(host.plain, model, skip=OF_MEMORY | replaced | added | beyond)
    if differing:
        raise UsageError(
            f'config.train.start_from = {source}: config.model is another model:\n  '
            + '\n  '.join(differing)
        )
    folder, names = host.folder, '*.safetensors'
    if is_gguf(folder):
        folder, names = folder.parent, glob.escape(folder.name)
    require_same_files(source, folder, names)
    # What is new is said by `graft`: the host by itself lacks nothing.
    return hosts.load(
        host,
        hosts.make(host.model, 1),
        experiment.mesh,
        report=lambda line: say(line.replace('; new: nothing', '')),
    )


START = Start(hosts.is_name, parameters)
