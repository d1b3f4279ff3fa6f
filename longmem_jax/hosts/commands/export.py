"""`--mode=export`: writes the newest checkpoint as a Hugging Face folder; see `hosts.export`."""

from pathlib import Path
from typing import Any

from longmem_jax.data import model_files
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.files import named
from longmem_jax.hosts import export as writing
from longmem_jax.hosts import hosts
from longmem_jax.layers import low_rank
from longmem_jax.untrusted import json_file, schema

# Kind of tokenizer to the name under which Hugging Face folders have its file.
TOKENIZERS = {
    'bpe': 'tokenizer.json',
    'tokenizers': 'tokenizer.json',
    'sentencepiece': 'tokenizer.model',
}


def export(experiment: Experiment, folder: str = '') -> list[str]:
    """Writes the model of a run to a folder; low-rank parts become parts of its kernels.

    Args:
      experiment: a trained experiment. If `config.train.start_from` names a host, its attributes, names
        and tokenizer are kept.
      folder: must not exist, or be empty.

    Returns:
      The names of the files.

    Raises:
      UsageError: no folder, several processes, or no checkpoint; a model that no Hugging Face family
        has, without a host that it began with; a folder that cannot be written.
    """
    if not folder:
        raise UsageError('--folder= is missing: the folder to write.')
    sharding.require_one_process('--mode=export')
    source = experiment.config.train.start_from
    like = hosts.find(source) if hosts.is_name(source) else None
    params, step = experiment.restore_parameters()
    params = low_rank.merged(params)
    model = experiment.config.model.copy_and_resolve_references()
    model.lora.rank = 0
    results = experiment.workdir / 'results.json'
    card = writing.model_card(
        Path(folder).name,
        model,
        base_model=_shown_name(source) if like else '',
        step=step,
        results=_object(results) if results.is_file() else {},
    )
    tokenizer = (
        {} if like and model_files.has(like.folder, 'tokenizer.json') else _tokenizer(experiment)
    )
    length = experiment.config.train.segment_length
    written = writing.save(
        folder, model, params, like=like, segment_length=length, files=tokenizer, card=card
    )
    print(f'Step {step:,} of {experiment.workdir} is in {folder}: {", ".join(written)}')
    return written


def _shown_name(source: str) -> str:
    """The name of a host for a model card: as on the hub, or of its folder or file, without a path."""
    path = Path(source).expanduser()
    return path.resolve().name if model_files.is_model(path) else source


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; raises `UsageError` if the file is something else."""
    return schema.require(json_file.read(path), schema.fields({}, others=True), path)


def _tokenizer(experiment: Experiment) -> dict[str, Path]:
    """The file of the run's tokenizer, under the name that others look for; {} if it has none."""
    settings = experiment.config.data.tokenizer
    if settings.kind not in TOKENIZERS:
        return {}
    paths = [Path(settings.path).expanduser()] if settings.path else []
    paths += named(experiment.workdir, f'tokenizer.{settings.kind}.{settings.size}.*')
    return {TOKENIZERS[settings.kind]: paths[0]} if paths and paths[0].is_file() else {}
