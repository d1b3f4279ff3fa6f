"""The command of experiments/hosts: what it runs, its tables and figures; nothing is trained."""

import json

import jax
import pytest

from configs import host as host_config
from experiments import compare, floors
from experiments.hosts import __main__ as run
from experiments.hosts import load, scores, table
from longmem_jax.config import checks, overrides
from longmem_jax.devices import sharding
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment
from longmem_jax.pretrained import hosts, model_fields


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def finished(tmp_path):
    """A folder with two memories and two seeds."""
    for memory, bits in (('local', 2.5), ('infini', 2.4)):
        for seed in range(2):
            folder = tmp_path / 'books' / memory / str(seed)
            parts = [[8, bits + 0.1 * seed], [512, bits - 0.1]]
            found = dict(all=bits + 0.02 * seed, parts=parts)
            write(folder / 'positions.json', dict(before=dict(all=2.75, parts=parts), after=found))
            numbers = dict(reset=dict(bits_per_byte=2.5), state_bytes=4000, ms_per_step=300)
            write(folder / 'numbers.json', numbers)
            rows = [
                dict(distance=50, kept=bits / 5, reset=0.25),
                dict(distance=200, kept=0.5, reset=0),
            ]
            write(tmp_path / 'passkey' / memory / str(seed) / 'recall.json', rows)
    pairs = dict(overall=dict(paradigms=0.55), field=dict(syntax=0.5, semantics=0.6))
    for folder in ('host', 'books/infini/0'):
        write(tmp_path / folder / 'blimp.json', dict(checkpoints=[pairs]))
    measured = dict(scores=dict(bigram=dict(bits_per_byte=2.37)), protocol='all of test')
    write(tmp_path / 'floors/floors.json', measured)
    return tmp_path


def test_tables_have_seeds_and_floors(finished):
    text = table.write(finished)
    assert (finished / 'hosts.md').read_text() == text
    assert [line for line in text.splitlines() if line.startswith('|') and '---' not in line] == [
        '| memory | before | after | after, reset | 0 - 512 | 512 - 32,768 | state, kB | ms/step |',
        '| `local` | 2.750 | 2.510 (2.500 - 2.520) | 2.500 | '
        '2.550 (2.500 - 2.600) | 2.400 | 4 | 300 |',
        '| `infini` | 2.750 | 2.410 (2.400 - 2.420) | 2.500 | '
        '2.450 (2.400 - 2.500) | 2.300 | 4 | 300 |',
        '| without a learned memory | bits/byte |',
        '| bigram | 2.370 |',
        '| memory | 50 | 200 |',
        '| `local` | 50 | 50 |',
        '| ... reset | 25 | 0 |',
        '| `infini` | 48 | 50 |',
        '| ... reset | 25 | 0 |',
        '|  | all paradigms | syntax | semantics |',
        '| the host | 55.0 | 50.0 | 60.0 |',
        '| `infini` | 55.0 | 50.0 | 60.0 |',
    ]
    assert (finished / 'positions.png').exists() and (finished / 'passkey.png').exists()


def test_every_run_has_the_same_budget_and_is_runnable(tmp_path, monkeypatch):
    """What would be trained is checked as `longmem_jax.main` would."""
    calls = []

    def remember(config, variants, flags, seed, folder, together=0):
        calls.append((variants, flags))
        return dict(test=dict(bits_per_byte=2.0))

    monkeypatch.setattr(compare, 'run', remember)
    monkeypatch.setattr(floors, 'measure', lambda *_: None)
    for name in ('export_plain', 'positions', 'recall'):
        monkeypatch.setattr(scores, name, lambda *_: None)
    monkeypatch.setattr(table, 'write', lambda _: '')
    load.write(tmp_path / 'exported', 1, small=True)
    run.main([f'--output={tmp_path}', f'--books={tmp_path}', '--seeds=2', 'local', 'infini'])
    assert len(calls) == 1 + 2 * 2 + 2 * 2
    budgets = set()
    for variants, flags in calls:
        config = host_config.get_config(variants)
        _, changes = overrides.split_arguments(flags)
        overrides.apply(config, changes)
        assert checks.find_faults(config, 1) == []
        train = config.train
        budgets.add((config.data.source, train.num_steps, train.num_lanes, train.segments_per_step))
        if 'path=' not in variants:  # the host is trained first, and exported long after
            assert model_fields.attributes_of(scores.plain_model(config.model))['n_embd'] == 128
    assert budgets == {('text', 5000, 16, 2), ('text', 400, 8, 4), ('passkey', 600, 8, 4)}


@pytest.mark.slow  # compiles two evaluations
def test_positions_are_those_of_every_document(tmp_path):
    """However many lanes the run evaluates with."""
    for split, number in (('train', 1), ('validation', 1), ('test', 3)):
        (tmp_path / split).mkdir()
        for book in range(number):
            words = ('sea', 'sky', 'sun')[book]
            (tmp_path / split / f'{book}.txt').write_text(f'{words} ' * (40 + 10 * book))
    config = host_config.get_config('tiny,memory=transformer_xl,segment=8')
    config.data.source, config.data.path = 'text', str(tmp_path)
    config.evaluate.update(num_lanes=1, max_test_segments=512)
    mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, memory=1), jax.devices()[:1])
    run = Experiment(config, tmp_path / 'run', mesh)
    params = jax.jit(run.make_state)().params
    evaluator = Evaluator(run.evaluation_model, mesh, config)
    found = scores.by_position(run, evaluator, params)
    whole, _ = evaluator.evaluate(params, run.corpus('test'), 'test')
    assert found['all'] == pytest.approx(whole.bits_per_byte, rel=1e-5)
    config.evaluate.num_lanes = 3
    begin, _ = evaluator.evaluate(params, run.corpus('test'), 'test', max_segments=8)
    assert found['parts'][0] == [8, pytest.approx(begin.bits_per_byte, rel=1e-5)]
    assert [end for end, _ in found['parts']] == [8, 32]  # 160 to 240 tokens


def test_a_large_host_is_written_and_read(tmp_path):
    load.write(tmp_path / 'llama', 2, small=True)
    found = load.load(tmp_path / 'llama')
    host = hosts.find(tmp_path / 'llama')
    params = hosts.load(host, hosts.make(host.model, 1), report=lambda _: None)
    assert found['parameters'] == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert 0 < found['peak before, GB'] <= found['peak, GB']
