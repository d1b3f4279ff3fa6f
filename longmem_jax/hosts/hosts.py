"""Pretrained models as hosts of memories: a folder, a GGUF file, or a name on the hub, to parameters.

For example::

    host = hosts.find('gpt2')  # a folder, a GGUF file, or a name on the hub
    model = hosts.make(host.model, segment_length)  # a LanguageModel that computes what the host does
    params = hosts.load(host, model)

`host.model` is an ordinary `config.model`. With other attention layers in it the model is the host with
a memory: `load` then fills the parameters that both have, and the others start as in any new model.
"""

import concurrent.futures
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh

from longmem_jax.config.base import base
from longmem_jax.config.model_checks import model_problems
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError, say
from longmem_jax.hosts import graft_file, hub, model_fields, tables
from longmem_jax.hosts.families import FAMILIES, Family
from longmem_jax.hosts.gguf_tensors import GgufFile
from longmem_jax.hosts.graft_file import AND, Files
from longmem_jax.hosts.own_layers import rows_of
from longmem_jax.hosts.patterns import Shapes, layout
from longmem_jax.hosts.pieces import pieces_of
from longmem_jax.hosts.tensor_files import OWN, TensorFiles, some
from longmem_jax.hosts.text_encoder import TextEncoder
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import KINDS, make_model
from longmem_jax.models.parameters import abstract_parameters, initial_parameters, unbox
from longmem_jax.untrusted import json_file
from longmem_jax.untrusted.gguf_file import is_gguf

ALIGNED = 64  # bytes, where XLA wants arrays to begin


@dataclasses.dataclass(frozen=True)
class Host:
    """A Hugging Face model that can be loaded.

    Attributes:
      folder: where its files are, or the GGUF file that it is read from.
      attributes: its `config.json`.
      family: of `FAMILIES`.
      plain: `config.model` of the host by itself.
      model: the same, or with the memory that the folder was exported with.
      files: its tensors.
      segment_length: tokens per segment that it was trained with, of a host with a memory; otherwise 0.
    """

    folder: Path
    attributes: dict[str, Any]
    family: Family
    plain: Any
    model: Any
    files: Files
    segment_length: int = 0

    def name_of(self, row: tables.Row) -> str | None:
        """The name of a row's tensor in the files; None = they do not have it."""
        return next(filter(self.files.shapes.__contains__, self.family.names(row)), None)


def is_host(source: str | Path) -> bool:
    """Whether a folder has a `config.json` of a Hugging Face model, or a path is that of a GGUF file."""
    try:
        path = Path(source).expanduser()
        if is_gguf(path):
            return True
        given = json_file.read(path / 'config.json')
    except (UsageError, RuntimeError):  # `~nobody` is no folder
        return False
    return isinstance(given, dict) and 'model_type' in given


def is_name(source: str | Path) -> bool:
    """Whether a source is a host, or no folder here, so that it can only be a name on the hub.

    '' is no source, also where the current folder has the files of a host.
    """
    return source != '' and (is_host(source) or not Path(source).expanduser().exists())


def find(source: str | Path, context: int = 0) -> Host:
    """A host by its folder or file, or by its name on the Hugging Face hub.

    Args:
      source: a folder with `config.json` and safetensors, a GGUF file, or a name such as 'gpt2' or
        'org/name', with '@' and a commit, tag or branch after it if it shall not be the newest. After
        any of them may stand ' + ' and the file of a graft, or its name on the hub; see `graft_file`.
      context: tokens that attention without a window sees; 0 = the host's longest text. The memory and
        time of a segment grow with it, also where a text is short.

    Raises:
      UsageError: no such model, or one that cannot be read.
    """
    source, _, graft = str(source).partition(AND)
    if graft:
        return _grafted(find(source, context), hub.graft(graft))
    folder = Path(source).expanduser()
    if is_gguf(folder):
        file = GgufFile(folder)
        plain = model_fields.model_of(file.attributes, str(folder), context)
        family = FAMILIES[file.attributes['model_type']]
        return Host(folder, file.attributes, family, plain, plain, file)
    if not folder.is_dir():
        folder = hub.fetch(str(source))
    if not (folder / 'config.json').exists():
        raise UsageError(f'{folder}: has no config.json; give the folder of a model.')
    given = json_file.read(folder / 'config.json')
    name = str(folder / 'config.json')
    if not isinstance(given, dict):
        raise UsageError(f'{name}: must be an object with the attributes of a model.')
    if 'model_type' not in given and {'model', 'train'} <= given.keys():
        raise UsageError(
            f'{folder}: the workdir of a run; give the folder that --mode=export --folder= makes of it.'
        )
    plain = model_fields.model_of(given, name, context)
    files, family = TensorFiles(folder), FAMILIES[given['model_type']]
    for whole in itertools.chain(*(family.names(row) for row in rows_of(family, plain))):
        if pieces := pieces_of(whole, files.shapes):
            files.join(whole, pieces)
    if plain.kind == 'text_encoder':
        has_pooler = any('pooler.dense' in tensor for tensor in files.shapes)
        plain.text_encoder.pooler = has_pooler
    model, length = _with_memory(given, name) if 'longmem' in given else (plain, 0)
    return Host(folder, given, family, plain, model, files, length)


def _grafted(host: Host, path: Path) -> Host:
    """A host with a graft."""
    if host.model is not host.plain:
        raise UsageError(f'{host.folder}: has a memory already; a graft needs an untouched host.')
    given, files = graft_file.read(path, host.attributes, host.files)
    model, length = _with_memory({'longmem': given}, str(path))
    return dataclasses.replace(host, model=model, files=files, segment_length=length)


def _with_memory(given: Mapping[str, Any], name: str) -> tuple[Any, int]:
    """`config.model` of a host that was exported with a memory, and its segment length."""
    stored = given['longmem'] if isinstance(given['longmem'], dict) else {}
    fields, length = stored.get('model'), stored.get('segment_length', 1)
    if not isinstance(fields, dict) or not isinstance(length, int) or length < 1:
        raise UsageError(
            f'{name}: longmem must have model and segment_length, as --mode=export writes them.'
        )
    model = base().model
    del model.transformer_xl
    unknown = set(fields) - {*model, *LAYERS, *KINDS, 'text_encoder'}
    if unknown:
        raise UsageError(f'{name}: longmem.model has {some(unknown)}: not fields.')
    try:
        model.update(_tuples(fields))
        problems = model_problems(model, length)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UsageError(f'{name}: longmem.model cannot be read ({error}).') from error
    if problems:
        raise UsageError(f'{name}: longmem.model has problems:\n  ' + '\n  '.join(problems))
    return model, length


def _tuples(value: Any) -> Any:
    """JSON's lists as tuples."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def make(model: Any, segment_length: int) -> Any:
    """The module of a `config.model` of any kind that a host has; see `models.kinds.make_model`."""
    if model.kind == 'text_encoder':
        return TextEncoder(ml_collections.FrozenConfigDict(model))
    return make_model(model, segment_length)


def shapes(module: nn.Module) -> dict[str, jax.ShapeDtypeStruct]:
    """Path of every parameter to its shape."""
    return flax.traverse_util.flatten_dict(unbox(abstract_parameters(module)), sep='/')


def load(
    host: Host,
    module: nn.Module,
    mesh: Mesh | None = None,
    *,
    seed: int = 0,
    report: Callable[[str], None] = say,
) -> Any:
    """Parameters of a model from a host's files, each part read straight to the devices that hold it.

    Args:
      module: a model of `host.model`, or of the same with another memory; see `make`.
      mesh: devices; None = all, each with all parameters.
      report: called with a line that says what was loaded, is new, and was ignored.

    Returns:
      A tree of float32 arrays, like `initial_parameters(module)` unboxed.

    Raises:
      UsageError: the files lack tensors of the host, have others, or of other shapes.
    """
    mesh = sharding.make_mesh({'data': -1}) if mesh is None else mesh
    shardings = sharding.parameter_shardings(mesh, abstract_parameters(module))
    places = flax.traverse_util.flatten_dict(shardings, sep='/')
    wanted = shapes(module)
    # Of equal length, so that a host as it was is traced once.
    own = shapes(make(host.plain, getattr(module, 'segment_length', 1)))
    sources, ignored = _sources(host, own, wanted)
    names = {source[0] for source in sources.values()}
    # Most of the time goes to turning the kernels around, which several threads can do.
    with concurrent.futures.ThreadPoolExecutor(host.files.threads) as pool:
        arrays = pool.map(
            lambda path: _place(host.files, *sources[path], places[path]), list(sources)
        )
        loaded = dict(zip(sources, arrays, strict=True))
    new = sorted(set(wanted) - set(loaded))
    if new and host.model is not host.plain and _is_whole(host, wanted):
        raise UsageError(f'{host.folder}: the tensors do not fit: missing tensors: {some(new)}.')
    if new:
        loaded |= _initial(module, seed, new, places)
    said = f'{len(names)} tensors ({host.files.num_bytes(names) / 2**20:.1f} MiB) of {host.folder}'
    report(f'Loaded {said}; new: {some(new) or "nothing"}; ignored: {some(ignored) or "nothing"}.')
    return flax.traverse_util.unflatten_dict(loaded, sep='/')


def _is_whole(host: Host, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> bool:
    """Whether a model has the parameters of the one that was exported: then the files have all."""
    return {*wanted} == {*shapes(make(host.model, host.segment_length))}


# Where one of our parameters is: the tensor, its number among those in it, the layout, and the shapes of
# all that are in the tensor.
Source = tuple[str, int, str, Shapes]


def _sources(
    host: Host,
    own: Mapping[str, jax.ShapeDtypeStruct],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
) -> tuple[dict[str, Source], list[str]]:
    """Where every parameter that the files have is, and the tensors that `wanted` has no use for.

    Args:
      own: parameters of the host as it was, without a memory.
      wanted: parameters of the model to load.
    """
    found: dict[str, Source] = {}
    known, missing, ignored, problems = set(), [], [], []
    for row in rows_of(host.family, host.plain):
        name = host.name_of(row)
        if row.ours[0] not in own:
            if name is not None and row.theirs in host.family.heads:
                known.add(name)
                _require_tied(host, name)
            continue
        needed = row.ours[0] in wanted
        if name is None:
            missing += [row.theirs] if needed or host.model is host.plain else []
            continue
        known.add(name)
        every = [tuple(own[path].shape) for path in row.ours]
        theirs = layout(row.layout).their_shape(every)
        if host.files.shapes[name] != theirs:
            problems.append(f'{name} is {host.files.shapes[name]}, by config.json {theirs}')
        elif not needed:
            ignored.append(name)
        for number, (path, shape) in enumerate(zip(row.ours, every, strict=True)):
            if path in wanted and tuple(wanted[path].shape) != shape:
                problems.append(f'{name} gives {path} {shape}, this model has {wanted[path].shape}')
            elif path in wanted:
                found[path] = (name, number, row.layout, every)
    for name in set(host.files.shapes) - known:
        path = name.removeprefix(OWN).replace('.', '/')
        if not name.startswith(OWN) or host.model is host.plain:
            continue
        known.add(name)
        if path not in wanted:
            ignored.append(name)
        elif tuple(wanted[path].shape) != host.files.shapes[name]:
            problems.append(f'{name} is {host.files.shapes[name]}, not {wanted[path].shape}')
        else:
            axes = ' '.join(f'a{i}' for i in range(len(wanted[path].shape)))
            found[path] = (name, 0, f'{axes} -> {axes}', [tuple(wanted[path].shape)])
    unknown: list[str] = []
    for name in set(host.files.shapes) - known:
        buffer = any(re.fullmatch(which, name) for which in host.family.ignored)
        (ignored if buffer else unknown).append(name)
    if missing:
        problems.append(f'missing are {some(missing)}')
    if unknown:
        problems.append(f'not of this model are {some(unknown)}')
    if problems:
        raise UsageError(f'{host.folder}: the tensors do not fit: {"; ".join(problems)}.')
    return found, ignored


def _require_tied(host: Host, head: str) -> None:
    """Raises `UsageError` unless the output's vectors are those of the input, which the model shares."""
    files = host.files
    row = next(row for row in host.family.rows if row.ours == (tables.TABLE,))
    table = host.name_of(row)
    if table is None:
        return
    rows, width = files.shapes[table]
    step = max((1 << 24) // max(width, 1), 1)
    same = files.shapes[head] == files.shapes[table]
    for start in range(0, rows if same else 0, step):
        part = (slice(start, min(start + step, rows)), slice(0, width))
        same = same and np.array_equal(files.read(head, part), files.read(table, part))
    if not same:
        raise UsageError(
            f'{files.folder}: {head} differs from {table}, though config.json sets tie_word_embeddings. '
            'If the output has vectors of its own, set tie_word_embeddings to false.'
        )


def _place(
    files: Files,
    name: str,
    number: int,
    rule: str,
    shapes: Shapes,
    placed: jax.sharding.Sharding,
) -> jax.Array:
    """One of our parameters on its devices; every part is read once, also if several devices hold it."""
    parts, ours = {}, shapes[number]

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        index = tuple(slice(*cut.indices(size)[:2]) for cut, size in zip(index, ours, strict=True))
        key = tuple((cut.start, cut.stop) for cut in index)
        if key not in parts:
            parts[key] = _filled(take, index, files.at_once)
            # Both are NaN if any number is; no array of flags is made.
            if parts[key].size and not np.isfinite([parts[key].min(), parts[key].max()]).all():
                raise UsageError(
                    f'{files.folder}: {name} has numbers that are not finite: its file is damaged, or '
                    'the model was saved after its training had failed; get another copy.'
                )
        return parts[key]

    def take(index: tuple[slice, ...]) -> np.ndarray:
        return layout(rule).take(lambda cuts: files.read(name, cuts), number, index, shapes)

    return jax.make_array_from_callback(ours, placed, part)


def _filled(
    take: Callable[[tuple[slice, ...]], np.ndarray], index: tuple[slice, ...], at_once: int
) -> np.ndarray:
    """`take(index)` as float32, `at_once` bytes at a time, so that a large parameter has one copy.

    Its place in memory is one that a CPU's device takes as its own.
    """
    shape = tuple(cut.stop - cut.start for cut in index)
    memory = np.empty((4 * math.prod(shape) + ALIGNED,), np.uint8)
    begin = -memory.ctypes.data % ALIGNED
    filled = memory[begin : begin + 4 * math.prod(shape)].view(np.float32).reshape(shape)
    if not shape:
        filled[()] = take(index)
        return filled
    rows = max(at_once // max(4 * math.prod(shape[1:]), 1), 1)
    for start in range(0, shape[0], rows):
        first, last = index[0].start + start, min(index[0].start + start + rows, index[0].stop)
        with np.errstate(over='ignore'):  # a float64 that is too large: the caller says so
            filled[start : start + rows] = take((slice(first, last), *index[1:]))
    return filled


def _initial(
    module: nn.Module, seed: int, paths: list[str], places: Mapping[str, Any]
) -> dict[str, jax.Array]:
    """Initial values of some parameters; the others are never computed."""

    def make_new() -> dict[str, jax.Array]:
        params = unbox(initial_parameters(module, jax.random.key(seed)))
        flat = flax.traverse_util.flatten_dict(params, sep='/')
        return {path: jnp.asarray(flat[path], jnp.float32) for path in paths}

    return jax.jit(make_new, out_shardings={path: places[path] for path in paths})()
