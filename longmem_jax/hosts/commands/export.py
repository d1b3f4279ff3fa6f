"""`--mode=export`: the newest checkpoint as a Hugging Face folder, or as a graft.

See `hosts.export` and `hosts.graft_file`.
"""

from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np

from longmem_jax.data import model_files
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.files import named
from longmem_jax.hosts import export as writing
from longmem_jax.hosts import hosts
from longmem_jax.hosts.graft_file import AND, Grafted, fingerprint, write
from longmem_jax.hosts.tensor_files import some
from longmem_jax.layers import low_rank
from longmem_jax.memory.registry import used
from longmem_jax.untrusted import json_file, schema

# Kind of tokenizer to the name under which Hugging Face folders have its file.
TOKENIZERS = {
    'bpe': 'tokenizer.json',
    'tokenizers': 'tokenizer.json',
    'sentencepiece': 'tokenizer.model',
}


def export(experiment: Experiment, folder: str = '', graft: str = '') -> list[str]:
    """Writes the model of a run to a folder; low-rank parts become parts of its kernels.

    Args:
      experiment: a trained experiment. If `config.train.start_from` names a host, its attributes, names
        and tokenizer are kept.
      folder: must not exist, or be empty.
      graft: a file to write instead: the memory and the low-rank parts, of a run that kept its host.

    Returns:
      The names of the files.

    Raises:
      UsageError: no folder, several processes, or no checkpoint; a model that no Hugging Face family
        has, without a host that it began with; a folder that cannot be written.
    """
    if bool(folder) == bool(graft):
        raise UsageError(
            '--folder= is missing: the folder to write, or --graft= with a file for what was added.'
            if not folder
            else '--folder and --graft: give one of them.'
        )
    sharding.require_one_process('--mode=export')
    source = experiment.config.train.start_from
    like = hosts.find(source) if hosts.is_name(source) else None
    params, step = experiment.restore_parameters()
    if graft:
        _write_graft(experiment, like, params, Path(graft).expanduser())
        print(f'Step {step:,} of {experiment.workdir}: what was added to {source} is in {graft}')
        return [graft]
    params = low_rank.merged(params)
    model = experiment.config.model.copy_and_resolve_references()
    model.lora.rank = 0
    results = experiment.workdir / 'results.json'
    card = writing.model_card(
        Path(folder).name,
        model,
        base_model=_shown_name(source) if like else '',
        own=used(like.plain) if like else (),
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


def _write_graft(experiment: Experiment, like: hosts.Host | None, params: Any, path: Path) -> None:
    """Writes what a run added to its host; `UsageError` if the host did not stay as it was."""
    source = experiment.config.train.start_from
    if like is None or (like.model is not like.plain and not isinstance(like.files, Grafted)):
        raise UsageError(
            f'--graft: config.train.start_from = {source!r}: a run that began with an untouched host '
            'is needed; --folder= writes the whole model.'
        )
    flat = flax.traverse_util.flatten_dict(params, sep='/')
    plain = hosts.load(like, hosts.make(like.plain, 1), experiment.mesh, report=lambda line: None)
    host = flax.traverse_util.flatten_dict(plain, sep='/')
    moved = [name for name in {*flat} & {*host} if not bool((flat[name] == host[name]).all())]
    if moved:
        raise UsageError(
            f'--graft: the run changed parameters of the host: {some(moved)}. Train with `frozen`, or '
            'write the whole model with --folder=.'
        )
    added = {name: np.asarray(leaf) for name, leaf in flat.items() if name not in host}
    description = dict(
        model=experiment.config.model.copy_and_resolve_references().to_dict(),
        segment_length=experiment.config.train.segment_length,
        host=_shown_name(source),
        fingerprint=fingerprint(like.attributes, like.files),
    )
    write(path, added, description)


def _shown_name(source: str) -> str:
    """The name of a host for a model card: as on the hub, or of its folder or file, without a path."""
    source = source.partition(AND)[0]
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
