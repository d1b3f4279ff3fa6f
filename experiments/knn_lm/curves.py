r"""kNN-LM by number of neighbours, their share, the size of the datastore, and the vector of the key.

python -m experiments.knn_lm.curves --path=WIKITEXT2 --output=DIR [--seeds=5] \
    [-- --config.FIELD=VALUE ...]

Trains the model of README with every seed, and stores the training text by four vectors of each token.
Every neighbour of the scored tokens is found once. Then temperature and share are chosen on validation
for every number of neighbours, and for every part of the datastore, which is made of whole documents.
Finished seeds are kept, DIR/SEED.json. Every call writes DIR/curves.json, and prints its table.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import longmem_jax
from experiments import markdown, provenance
from experiments.options import add_seeds, make_parser, parse_with_flags
from longmem_jax.config import overrides
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.retrieval import build_datastore
from longmem_jax.retrieval.datastore import Datastore, identity
from longmem_jax.retrieval.evaluate import (
    SHARES,
    TEMPERATURES,
    Lookup,
    LookupResult,
    concatenate,
    neighbours_log,
)
from longmem_jax.retrieval.index import make_index
from longmem_jax.retrieval.knn_lm import mixture
from longmem_jax.retrieval.reading import Reader

KS = (1, 4, 16, 64, 256, 1024)
FIXED_K = {'share': 256, 'store': 64, 'key': 256}  # of the other curves
STORES = (0.125, 0.25, 0.5, 1.0)
KEYS = ('feed_forward', 'feed_forward_raw', 'hidden', 'hidden_raw')
CHOSEN_ON = 5000  # tokens of validation
# Of the model and the search, as in README.
MODEL = """
--config.data.documents=wiki --config.data.tokenizer.kind=bpe --config.data.tokenizer.size=4000
--config.model.vocab_size=4096 --config.model.cutoffs=() --config.model.div_val=1
--config.model.tie_projections=(False,) --config.train.num_lanes=8 --config.train.num_steps=500
--config.evaluate.context=32 --config.evaluate.max_test_segments=80 --config.retrieval.kind=knn_lm
--config.retrieval.index=faiss --config.retrieval.centroids=512 --config.retrieval.code_size=32
--config.retrieval.probe=16
"""


def configuration(options: argparse.Namespace, seed: int, key: str) -> Any:
    """Of a seed, with a kind of key."""
    config = longmem_jax.configure('knn_lm_wikitext103:tiny')
    flags = [*MODEL.split(), *options.flags]
    # Fewer neighbours of the other keys are looked at, and finding them is most of the time.
    k = max(KS) if key == KEYS[0] else FIXED_K['key']
    for field, value in {
        'data.path': options.path,
        'data.seed': seed,
        'train.seed': seed,
        'retrieval.key': key,
        'retrieval.k': k,
        'retrieval.datastore': options.output / str(seed) / key,
    }.items():
        flags.append(f'--config.{field}={value}')
    overrides.apply(config, overrides.split_arguments(flags)[1])
    return config


class Found(NamedTuple):
    """The neighbours of counted tokens of a split, nearest first.

    Attributes:
      of: what was looked up, arrays [tokens, ...].
      documents: int [tokens, k], of the neighbours.
    """

    of: LookupResult
    documents: np.ndarray

    def log(self, temperature: float, k: int, kept: np.ndarray | None = None) -> np.ndarray:
        """Log-probability of the targets by the k nearest neighbours of the documents `kept`."""
        of = self.of
        if kept is not None:
            distances = np.where(kept[self.documents], of.distances, np.inf)
            order = np.argsort(distances, axis=1, kind='stable')[:, :k]
            distances, values = (np.take_along_axis(a, order, 1) for a in (distances, of.values))
            of = dataclasses.replace(of, distances=distances, values=values)
        return neighbours_log(of, k, temperature)


def find(experiment: Experiment, params: Any, store: Datastore, split: str) -> Found:
    """Looks up as many tokens of a split as are scored, or on which is chosen."""
    settings, limit = experiment.config.retrieval, experiment.config.evaluate.max_test_segments
    index = make_index(settings, store, experiment.mesh)
    lookup = Lookup(index, store, settings.k, None, own_text=False)
    reader = Reader(experiment, params, split, wanted=('keys', 'nll'))
    results, documents, count = [], [], 0
    for part in reader.parts(limit if split == 'test' else 0):
        results.append(lookup.read(part))
        documents.append(store.rows('documents', lookup.numbers))
        count += len(documents[-1])
        if split != 'test' and count >= CHOSEN_ON:
            break
    return Found(concatenate(results), np.concatenate(documents))


def loss(found: Found, log: np.ndarray, share: float) -> float:
    """Nats per token of the mixture."""
    return -float(mixture([found.of.log_model, log], [1 - share, share]).mean())


def chosen(
    validation: Found, test: Found, k: int, kept: np.ndarray | None = None
) -> tuple[float, float, float]:
    """Loss on test, with the temperature and the share that are best on validation."""
    trials = []
    for temperature in TEMPERATURES:
        log = validation.log(temperature, k, kept)
        trials += [(loss(validation, log, share), temperature, share) for share in SHARES]
    _, temperature, share = min(trials)
    return loss(test, test.log(temperature, k, kept), share), temperature, share


def curves(options: argparse.Namespace, seed: int) -> dict[str, dict[str, float]]:
    """Nats per token on test: {'alone', 'k', 'share', 'store', 'key'}, each by its values."""
    workdir, result = options.output / str(seed) / 'run', {}
    longmem_jax.train(configuration(options, seed, KEYS[0]), workdir)
    for key in KEYS:
        config = configuration(options, seed, key)
        experiment = Experiment(config, workdir, sharding.make_mesh(config.mesh.to_dict()))
        build_datastore.build(experiment, 'train')
        params, _ = experiment.restore_parameters()
        folder = Path(experiment.config.retrieval.datastore)
        size = experiment.tokenizer.vocab_size
        store = Datastore(folder, identity(experiment, params), False, vocab_size=size)
        validation, test = (find(experiment, params, store, s) for s in ('validation', 'test'))
        best, temperature, _ = chosen(validation, test, FIXED_K['key'])
        result.setdefault('key', {})[key] = best
        if key != KEYS[0]:
            continue
        result['alone'] = {'model': -float(test.of.log_model.mean())}
        result['k'] = {str(k): chosen(validation, test, k)[0] for k in KS}
        log = test.log(temperature, FIXED_K['share'])
        result['share'] = {f'{share:g}': loss(test, log, share) for share in SHARES[1::2]}
        documents = 1 + store.rows('documents', np.arange(len(store))).max()
        order = np.random.default_rng(seed).permutation(documents)
        for part in STORES:
            kept = order < max(1, round(part * documents))
            best = chosen(validation, test, FIXED_K['store'], kept)[0]
            result.setdefault('store', {})[f'{part:g}'] = best
    return result


def perplexities(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell with perplexities in place of nats per token, and where it comes from."""
    return {
        curve: of if curve == 'run' else {value: float(np.exp(nats)) for value, nats in of.items()}
        for curve, of in cell.items()
    }


def table(found: dict[str, Any]) -> str:
    """Perplexities, mean (minimum - maximum) over seeds."""
    lines = []
    for curve in ('alone', 'k', 'share', 'store', 'key'):
        for value in next(iter(found.values()))[curve]:
            scores = [of_seed[curve][value] for of_seed in found.values()]
            lines.append([curve, value, markdown.span(scores, 1)])
    return markdown.table(['curve', 'value', 'perplexity'], lines)


def main(given: list[str]) -> None:
    """Runs the command."""
    parser = make_parser(__doc__)
    parser.add_argument('--path', required=True)
    parser.add_argument('--output', type=Path, required=True)
    add_seeds(parser, '5')
    options = parse_with_flags(parser, given)
    found = {}
    for seed in options.seeds:
        file = options.output / f'{seed}.json'
        if not file.exists():
            provenance.save(file, curves(options, seed), [seed])
        found[str(seed)] = perplexities(json.loads(file.read_text()))
    provenance.save(options.output / 'curves.json', found, options.seeds)
    print(table(found))


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f'UsageError: {error}')
