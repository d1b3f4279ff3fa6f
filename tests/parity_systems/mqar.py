"""Samples of MQAR by its authors' generator (Zoology): arrays `inputs`, `labels` and `config_json`."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from longmem_jax.data.tasks import mqar
from longmem_jax.untrusted import json_file
from longmem_jax.untrusted.library import library_errors

FIELDS = ('input_seq_len', 'num_kv_pairs', 'num_examples', 'seed', 'vocab_size', 'power_a')
NOT_ASKED = -100


def knows(path: Path) -> bool:
    """Whether a file has such samples: by the names of its arrays, which no other file has."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {'inputs.npy', 'labels.npy', 'config_json.npy'} == {*archive.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def check(path: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Where `mqar.lay_out` makes other documents of the authors' random numbers, and where not: zeros.

    Their generator draws the keys of all documents, then all values, then all places, from numpy; and
    the filler from torch with the same seed, whose numbers are those of the same Mersenne twister.
    """
    with library_errors(f'{path}: not a whole npz file'), np.load(path, allow_pickle=False) as file:
        inputs, labels, config = file['inputs'], file['labels'], str(file['config_json'])
    config = json_file.parse(config, f'{path}, config_json')
    length, pairs, count, seed, words, power = (config[name] for name in FIELDS)
    passes = config.get('num_passes', 1)
    random, fillers = np.random.RandomState(seed), np.random.RandomState(seed)

    def draw(places: np.ndarray, p: np.ndarray | None = None) -> list[np.ndarray]:
        return [random.choice(places, pairs, replace=False, p=p) for _ in range(count)]

    keys, values = draw(np.arange(1, words // 2)), draw(np.arange(words // 2, words))
    room = length // 2 - pairs * passes
    asked = draw(np.arange(room), mqar.chances_by_power(room, power))
    fill = np.zeros((count, length), np.int32)
    if config['random_non_queries']:
        fill = (fillers.randint(0, 2**32, (count, length), np.uint64) % words).astype(np.int32)
    made = [mqar.lay_out(*drawn, passes) for drawn in zip(keys, values, asked, fill, strict=True)]
    found = np.stack([document.inputs for document in made])
    answers = np.stack([np.where(d.scored > 0, d.tokens, NOT_ASKED) for d in made])
    for name, ours, theirs in (('inputs', found, inputs), ('labels', answers, labels)):
        if ours.shape != theirs.shape:
            raise ValueError(f'{path}: {name} is {theirs.shape}, config_json says {ours.shape}')
        yield f'{name}, differing', ours != theirs, np.zeros(ours.shape)
