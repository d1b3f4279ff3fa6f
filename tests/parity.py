"""Compares this library with the results of the authors' code: `python -m tests.parity FILE`.

Prints one line per checked tensor or text, `name max_abs_err tolerance ok|FAIL`; exits 1 if any fails or
if nothing was checked. Samples of a benchmark's generator are recognized by `BENCHMARKS`. Any other file
is an npz file; its system is `config_json["system"]` or the name of the file's folder.
"""

import argparse
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from longmem_jax.untrusted import json_file, schema
from longmem_jax.untrusted.library import library_errors
from tests.parity_systems import (
    armt,
    attention_sinks,
    babi,
    compressive_transformer_conv,
    decayed,
    delta,
    hosts,
    infini_attention,
    infinity_former,
    knn_lm,
    lifelong_episodes,
    lifelong_mbpa,
    lifelong_replay,
    linear_attention,
    mem_transformer,
    memformer,
    memorizing_transformer,
    memsizer,
    moba,
    mqar,
    pkm,
    ruler,
    t5_relative_bias,
    titans,
    transformer_sequential,
    transformer_xl,
    ttt,
)

# name -> generator of (tensor name, ours, reference)
SYSTEMS = {
    'transformer_xl': transformer_xl.check,
    't5_relative_bias': t5_relative_bias.check,
    'expire_span': transformer_sequential.checker('expire_span'),
    'adaptive_span': transformer_sequential.checker('adaptive_span'),
    'compressive_transformer_conv': compressive_transformer_conv.check,
    'infinity_former': infinity_former.check,
    'memorizing_transformer': memorizing_transformer.check,
    'linear_attention': linear_attention.check,
    'pkm': pkm.check,
    'memformer': memformer.check,
    'mem_transformer': mem_transformer.check,
    'memsizer': memsizer.check,
    'moba': moba.check,
    **dict.fromkeys(('gated_delta_net', 'kda'), delta.check),
    'attention_sinks': attention_sinks.check,
    'armt': armt.check,
    'ttt': ttt.check,
    'titans': titans.check,
    'knn_lm': knn_lm.check,
    'infini_attention': infini_attention.check,
    'compressive_mean': transformer_sequential.checker('compressive'),
    **dict.fromkeys(lifelong_episodes.SYSTEMS, lifelong_episodes.check),
    **dict.fromkeys(decayed.NAMES, decayed.check),
    'agem': lifelong_replay.check,
    'replay': lifelong_replay.check,
    'mbpa': lifelong_mbpa.check_mbpa,
    'meta_mbpa': lifelong_mbpa.check_meta_mbpa,
    **dict.fromkeys((*hosts.NAMES, *hosts.HYBRIDS, hosts.EXPERTS, *hosts.LATER), hosts.check),
}
# Benchmarks whose samples are generated again: name -> module in `parity_systems` with `knows(path)`,
# whether a file is of it, and `check(path)`, a generator of (name, ours, reference): both are arrays, or
# both are texts, which must be equal.
BENCHMARKS: dict[str, ModuleType] = {
    'ruler': ruler,
    'babi': babi,
    'mqar': mqar,
}
TOLERANCE = 1e-4
LARGEST = 1 << 31  # bytes of all arrays


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file, never objects; `ValueError` if it is damaged or too large unpacked."""
    with library_errors(f'{path}: not a whole npz file'):
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > LARGEST:
                raise ValueError(f'{size:,} bytes when unpacked, {LARGEST:,} are read')
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def compare(path: Path) -> Iterator[tuple[str, float, float]]:
    """Runs the checks of one golden.

    Yields:
      name, largest absolute error, tolerance (1e-4 of the largest reference value); for texts the number
      of characters from the first difference on, and 0.

    Raises:
      ValueError: a damaged file, a system that has no checks, or arrays whose shapes differ.
    """
    benchmark = next((each for each in BENCHMARKS.values() if each.knows(path)), None)
    for name, ours, reference in benchmark.check(path) if benchmark else _of_system(path):
        if isinstance(reference, str):
            yield name, float(_differ(ours, reference)), 0.0
            continue
        ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
        if ours.shape != reference.shape:
            raise ValueError(f'{path}: {name} is {ours.shape}, the reference {reference.shape}')
        largest = np.abs(reference).max(initial=0.0)
        error = np.abs(ours - reference)
        error = np.inf if np.isnan(error).any() else error.max(initial=0.0)
        yield name, float(error), float(TOLERANCE * largest)


def _of_system(path: Path) -> Iterator[tuple[str, Any, Any]]:
    """(tensor name, ours, reference) of an npz file."""
    arrays = read_arrays(path)
    settings = json_file.parse(str(arrays.get('config_json', '{}')), f'{path}, config_json')
    schema.require(settings, schema.fields({}, {'system': schema.text()}, others=True), path)
    system = settings.get('system', path.resolve().parent.name)
    settings['folder'] = str(path.resolve().parent)
    if system not in SYSTEMS and (path.parent / 'hf' / 'config.json').is_file():
        system = 'gpt2'  # any Hugging Face model: its family is in its folder
    if system not in SYSTEMS:
        raise ValueError(f'{path}: system {system!r}; there are checks for {sorted(SYSTEMS)}')
    yield from SYSTEMS[system](settings, arrays)


def _differ(ours: str, reference: str) -> int:
    """Characters from the first difference to the end of the longer text; 0 = equal."""
    longest = max(len(ours), len(reference))
    pairs = zip(ours.ljust(longest, '\0'), reference.ljust(longest, '\0'), strict=True)
    return next((longest - i for i, (a, b) in enumerate(pairs) if a != b), 0)


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('files', nargs='+', type=Path, metavar='FILE')
    checked, failed = 0, 0
    for path in parser.parse_args().files:
        try:
            for name, error, tolerance in compare(path):
                good = error <= tolerance
                checked, failed = checked + 1, failed + (not good)
                print(f'{name} {error:.3e} {tolerance:.3e} {"ok" if good else "FAIL"}')
        except (ValueError, OSError, KeyError) as error:
            print(f'{path}: {error}', file=sys.stderr)
            failed += 1
    return int(bool(failed) or not checked)


if __name__ == '__main__':
    sys.exit(main())
