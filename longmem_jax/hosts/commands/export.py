"""`--mode=export`: the newest checkpoint as a Hugging Face folder, here and on the hub, or as a graft.

See `hosts.export`, `hosts.card` and `hosts.graft_file`.
"""

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np

from longmem_jax.data import model_files
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError, require_extra, say
from longmem_jax.experiment import Experiment
from longmem_jax.files import named
from longmem_jax.hosts import card, hosts
from longmem_jax.hosts import export as writing
from longmem_jax.hosts.graft_file import AND, FILE, Grafted, fingerprint, write
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


def export(
    experiment: Experiment,
    folder: str = '',
    graft: str = '',
    push: str = '',
    dry_run: bool = False,
    license: str = '',
) -> list[str]:
    """Writes the model of a run to a folder; low-rank parts become parts of its kernels.

    Args:
      experiment: a trained experiment. If `config.train.start_from` names a host, its attributes, names
        and tokenizer are kept.
      folder: must not exist, or be empty.
      graft: a file to write instead: the memory and the low-rank parts, of a run that kept its host.
      push: repository of the Hugging Face hub, 'ORG/NAME' or 'ORG/NAME@BRANCH', that the folder or
        the graft is uploaded to, with a model card; a new one is private.
      dry_run: shows what would be uploaded, without the network.
      license: for the model card, by the hub's name.

    Returns:
      The names of the files.

    Raises:
      UsageError: no folder, several processes, or no checkpoint; a model that no Hugging Face family
        has, without a host that it began with; a folder that cannot be written; a hub that refuses.
    """
    if bool(folder) == bool(graft):
        raise UsageError(
            '--folder= is missing: the folder to write, or --graft= with a file for what was added.'
            if not folder
            else '--folder and --graft: give one of them.'
        )
    if dry_run and not push or license and graft and not push:
        raise UsageError('--dry_run, and --license of a graft, go with --push=.')
    if license and not re.fullmatch('[a-z0-9][a-z0-9.-]*', license):
        raise UsageError(
            f'--license={license}: give a name of the hub: apache-2.0, mit, other, ...'
        )
    sharding.require_one_process('--mode=export')
    hub = _Hub(push, dry_run) if push else None
    source = experiment.config.train.start_from
    like = hosts.find(source) if hosts.is_name(source) else None
    params, step = experiment.restore_parameters()
    if graft:
        _write_graft(experiment, like, params, Path(graft).expanduser())
        print(f'Step {step:,} of {experiment.workdir}: what was added to {source} is in {graft}')
        if hub is None:
            return [graft]
    params = low_rank.merged(params)
    model = experiment.config.model.copy_and_resolve_references()
    model.lora.rank = 0
    path = experiment.workdir / 'results.json'
    results = _object(path) if path.is_file() else {}
    if results.get('step', step) != step:
        say(f'{path} is of step {results["step"]}: the card has no results of step {step:,}.')
        results = {}
    text = card.model_card(
        hub.name.partition('/')[2] if hub else Path(folder or graft).expanduser().resolve().name,
        model,
        base_model=_shown_name(source) if like else '',
        metadata=_metadata(license, source if like else ''),
        own=used(like.plain) if like else (),
        step=step,
        segment_length=experiment.config.train.segment_length,
        results=results,
        dataset=_dataset(experiment.config.data),
        graft=hub.name if hub and graft else '',
    )
    if graft and hub:
        hub.upload_graft(Path(graft).expanduser(), text, f'Step {step:,}, by longmem_jax', license)
        return [graft]
    tokenizer = (
        {} if like and model_files.has(like.folder, 'tokenizer.json') else _tokenizer(experiment)
    )
    length = experiment.config.train.segment_length
    written = writing.save(
        folder, model, params, like=like, segment_length=length, files=tokenizer, card=text
    )
    print(f'Step {step:,} of {experiment.workdir} is in {folder}: {", ".join(written)}')
    if hub:
        hub.upload(Path(folder).expanduser(), f'Step {step:,}, by longmem_jax', license)
    return written


class _Hub:
    """A repository of the Hugging Face hub."""

    def __init__(self, push: str, dry_run: bool):
        """Asks the hub who uploads, before anything is written; with `dry_run` it asks nothing."""
        found = re.fullmatch(r'(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w./-]*))?', push)
        if not found:
            raise UsageError(f'--push={push}: a repository is ORG/NAME, or ORG/NAME@BRANCH.')
        self.name, self.branch = found[1], found[2] or ''
        self._push, self._api = push, None
        if not dry_run:
            with require_extra('hosts', f'--push={push}'):
                self._api = importlib.import_module('huggingface_hub').HfApi()
            self._ask('log in with `hf auth login`; --dry_run needs no hub', 'whoami')

    def _ask(self, remedy: str, function: str, *given: Any, **named: Any) -> Any:
        """Calls a function of the library; `UsageError` with the remedy if it fails."""
        try:
            return getattr(self._api, function)(*given, **named)
        except Exception as error:  # the library lets errors of several others through
            reason = (str(error).strip().splitlines() or [''])[0]
            raise UsageError(
                f'--push={self._push}: {function} failed ({type(error).__name__}: {reason}); {remedy}.'
            ) from error

    def _show(self, sizes: dict[str, int], license: str) -> None:
        """Prints what is uploaded: bytes by name."""
        if not license:
            print('The card names no licence: --license=NAME, such as apache-2.0.')
        sizes = sizes | {f'{len(sizes)} files': sum(sizes.values())}
        where = f'{self.name} of the Hugging Face hub, branch {self.branch or "main"}'
        print(f'{"To upload" if self._api is None else "Uploading"} to {where}:')
        for name, size in sizes.items():
            print(f'  {name:<32} {size:>15,} bytes')

    def _open(self, remedy: str) -> None:
        """Makes the repository and its branch, unless they are there."""
        self._ask(remedy, 'create_repo', self.name, private=True, exist_ok=True)
        if self.branch:
            self._ask(remedy, 'create_branch', self.name, branch=self.branch, exist_ok=True)

    def upload_graft(self, path: Path, card: str, message: str, license: str) -> None:
        """Shows the graft and its card, and uploads them unless it is a dry run."""
        content = card.encode()
        self._show({FILE: path.stat().st_size, 'README.md': len(content)}, license)
        command = f'hf upload {self.name} {shlex.quote(str(path))} {FILE} --private'
        command += f' --revision {self.branch}' if self.branch else ''
        if self._api is None:
            say(f'Nothing was uploaded. This uploads the file: {command}. Its card:\n\n{card}')
            return
        remedy = f'the file is whole, and this uploads it: {command}'
        self._open(remedy)
        for name, given in ((FILE, path), ('README.md', content)):
            done = self._ask(
                remedy,
                'upload_file',
                path_or_fileobj=given,
                path_in_repo=name,
                repo_id=self.name,
                revision=self.branch or None,
                commit_message=message,
            )
        say(f'Uploaded: {done.commit_url}. A new repository is private until you change that.')

    def upload(self, folder: Path, message: str, license: str) -> None:
        """Shows the files of a folder, and uploads them unless it is a dry run."""
        self._show({path.name: path.stat().st_size for path in sorted(folder.iterdir())}, license)
        command = f'hf upload {self.name} {shlex.quote(str(folder))} . --private'
        command += f' --revision {self.branch}' if self.branch else ''
        if self._api is None:
            say(
                f'Nothing was uploaded. Read {folder}/README.md; this uploads the folder: {command}'
            )
            return
        remedy = f'the folder is whole, and this uploads it: {command}'
        self._open(remedy)
        done = self._ask(
            remedy,
            'upload_folder',
            repo_id=self.name,
            folder_path=folder,
            revision=self.branch or None,
            commit_message=message,
        )
        say(f'Uploaded: {done.commit_url}. A new repository is private until you change that.')


def _metadata(license: str, source: str) -> dict[str, str]:
    """Fields of the card's front matter; the host only if it is one of the hub."""
    found = {'license': license} if license else {}
    name = source.partition(AND)[0]
    if name and not model_files.is_model(Path(name).expanduser()):
        found['base_model'] = name.partition('@')[0]
    return found


def _dataset(data: Any) -> dict[str, str]:
    """What was scored, as the hub's `model-index` has it: without a path, and with a type it takes."""
    hub = data.source in ('huggingface', 'tfds')
    name = re.split('[:,]', data.name)[0] if hub else Path(data.path).name
    kind = name if re.fullmatch(r'([\w-]+/)?[\w.-]+', name) and hub else data.source
    return {'type': kind, 'name': name or data.source, 'split': 'test'}


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
