"""Scores of hosts with memories, from the folders of their trainings; kept as files next to them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from experiments import provenance
from experiments.hosts.blimp import blimp
from experiments.short_trainings import on_one_device
from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.config.saved import saved_config
from longmem_jax.data import lanes
from longmem_jax.devices import sharding
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment
from longmem_jax.hosts import card, export, hosts
from longmem_jax.hosts.model_fields import set_windows
from longmem_jax.training.metrics import LN2

CONFIG, LOCAL = 'configs/host.py', 'local'
SEGMENT = 64  # tokens that the host sees
PER_BATCH = 8  # segments
BORDERS = (8, 32, 128, 512)  # segments after which a part of a book ends


def experiment_of(folder: Path) -> Experiment:
    """A finished training, on one device."""
    return on_one_device(saved_config(folder), folder)


def evaluator_of(run: Experiment) -> Evaluator:
    return Evaluator(run.evaluation_model, run.mesh, run.config)


def plain_model(given: Any) -> Any:
    """The `config.model` of a host, from that of its training, in which it sees one segment."""
    model = given.copy_and_resolve_references()
    model.positions_restart = False
    del model[LOCAL]
    position = 'none' if model.position == 'learned' else 'rotary'
    set_windows(model, (0,) * model.num_layers, SEGMENT, position=position)
    return model


def export_plain(folder: Path, output: Path) -> None:
    """Writes the host, which was trained segment by segment, as the GPT-2 or GPT-NeoX that it is."""
    if output.exists():
        return
    run = experiment_of(folder)
    params, step = run.restore_parameters()
    model = plain_model(run.config.model)
    (tokenizer,) = folder.glob('tokenizer.*.json')
    text = card.model_card(output.name, model, base_model='', step=step, results={})
    files = {'tokenizer.json': tokenizer}
    export.save(output, model, jax.device_get(params), files=files, card=text)
    hosts.find(output)


def missing(folder: Path, seeds: list[int], name: str) -> Iterator[tuple[int, Path, Experiment]]:
    """Seeds of a folder that do not have a file yet, with the file and their training."""
    for seed in seeds:
        done = folder / str(seed) / name
        if not done.exists():
            yield seed, done, experiment_of(done.parent)


def positions(folder: Path, seeds: list[int]) -> None:
    """Bits per byte of test by position, before and after: positions.json of every seed."""
    for seed, done, run in missing(folder, seeds, 'positions.json'):
        evaluator = evaluator_of(run)
        found = {'after': by_position(run, evaluator, run.restore_parameters()[0])}
        # Where there is no training, the parameters are the host's, and what is new is drawn.
        untrained = Experiment(run.config, folder / 'untrained', run.mesh)
        found['before'] = by_position(run, evaluator, newest_parameters(untrained, print)[0])
        provenance.save(done, found, [seed])


def by_position(run: Experiment, evaluator: Evaluator, params: Any) -> dict[str, Any]:
    """Bits per byte of the first segments of the test documents, each in a lane of its own.

    Returns:
      'parts': for every part of the documents its last segment and its bits per byte; 'all': those
      of all parts.
    """
    config, most = run.config.evaluate, run.config.evaluate.max_test_segments
    corpus, sums = run.corpus('test'), {}
    initial = evaluator.initial_state(params, len(corpus))
    memory = jax.tree.map(lambda leaf: leaf.copy(), initial)
    batches = lanes.in_order(corpus, len(corpus), config.segment_length, PER_BATCH)
    for number, (batch, _) in enumerate(batches):
        first = number * PER_BATCH
        if first >= most:
            break
        batch = sharding.from_processes(run.mesh, batch, 1)
        memory, found = evaluator.step(params, initial, memory, batch)
        end = next((border for border in BORDERS if first < border), most)
        nll, size = sums.get(end, (0.0, 0.0))
        sums[end] = nll + float(found['nll']) / LN2, size + float(found['num_bytes'])
    bits, size = map(sum, zip(*sums.values(), strict=True))
    return {
        'parts': [[end, nll / size] for end, (nll, size) in sums.items()],
        'all': bits / size,
    }


def recall(folder: Path, seeds: list[int], distances: list[int], documents: int) -> None:
    """Right answers by distance, and with the memory reset: recall.json of every seed."""
    for seed, done, run in missing(folder, seeds, 'recall.json'):
        evaluator, params, rows = evaluator_of(run), run.restore_parameters()[0], []
        for distance in distances:
            run.config.data.task.update(distances=(distance,), eval_documents=documents)
            right = {
                name: evaluator.evaluate(params, run.corpus('test'), 'test', reset=reset)[0]
                for name, reset in (('kept', False), ('reset', True))
            }
            shares = {name: result.exact_match for name, result in right.items()}
            rows.append({'distance': distance, 'documents': documents, **shares})
            print(f'passkey, {folder.name}, seed {seed}, {rows[-1]}', flush=True)
        provenance.save(done, rows, [seed])


def minimal_pairs(folder: Path, data: Path, pairs: int) -> None:
    """Runs `blimp` on a training, in segments that hold a sentence: blimp.json."""
    if (folder / 'blimp.json').exists() or not (folder / 'results.json').exists():
        return
    run = experiment_of(folder)
    run.config.evaluate.num_lanes = 64
    (row,) = blimp(run, str(data), num_pairs=pairs)
    print(f'BLiMP, {folder}: {row["overall"]}', flush=True)
