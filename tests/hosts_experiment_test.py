"""The command of experiments/hosts: what it runs, its tables and figures; nothing is trained."""

import json

import jax
import pytest

from configs import cmu_dog as dialogue_config
from configs import host as host_config
from configs import superglue as superglue_config
from experiments import compare, floors, provenance
from experiments.hosts import __main__ as run
from experiments.hosts import dialogue, load, scores, superglue, table
from longmem_jax.config import checks, overrides
from longmem_jax.devices import sharding
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment
from longmem_jax.hosts import hosts, model_fields
from longmem_jax.hosts.data import cmu_dog
from tests.hosts.data import cmu_dog_test


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


CONFIGS = {
    'configs/host.py': host_config,
    'configs/cmu_dog.py': dialogue_config,
    'configs/superglue.py': superglue_config,
}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """What would be trained with the host of a folder, checked as `longmem_jax.main` would."""
    found = []

    def remember(file, variants, flags, seed, folder, together=0):
        config = CONFIGS[file].get_config(variants)
        overrides.apply(config, overrides.split_arguments(flags)[1])
        assert checks.find_problems(config, 1) == []
        found.append(config)
        write(folder / 'superglue.test.json', dict(score=0.5))
        return dict(test=dict(bits_per_byte=2.0, loss=9.0))

    monkeypatch.setattr(compare, 'run', remember)
    monkeypatch.setattr(floors, 'measure', lambda *_: None)
    for name in ('export_plain', 'positions', 'recall'):
        monkeypatch.setattr(scores, name, lambda *_: None)
    monkeypatch.setattr(table, 'write', lambda _: '')
    load.write(tmp_path / 'exported', 1, small=True)
    return found


def budgets(calls):
    """Source, steps, lanes and segments of what would be trained."""
    return {
        (config.data.source, train.num_steps, train.num_lanes, train.segments_per_step)
        for config in calls
        for train in [config.train]
    }


def test_every_run_has_the_same_budget_and_is_runnable(tmp_path, calls):
    run.main([f'--output={tmp_path}', f'--books={tmp_path}', '--seeds=2', 'local', 'infini'])
    assert len(calls) == 1 + 2 * 2 + 2 * 2
    # The host is trained first, and exported long after.
    assert model_fields.attributes_of(scores.plain_model(calls[0].model))['n_embd'] == 128
    steps = run.parse([f'--output={tmp_path}', f'--books={tmp_path}'])
    assert budgets(calls) == {
        ('text', steps.host_steps, 16, 2), ('text', steps.steps, 8, 4),
        ('passkey', steps.passkey_steps, 8, 4),
    }  # fmt: skip


def test_a_rotary_host_is_exported_as_what_other_programs_know(tmp_path, calls):
    run.main([f'--output={tmp_path}', f'--books={tmp_path}', '--rotary', '--parts=blimp'])
    given = model_fields.attributes_of(scores.plain_model(calls[0].model))
    assert given['model_type'] == 'gpt_neox' and given['max_position_embeddings'] == 64
    # The family turns a quarter of a head where the file says nothing.
    assert given['rope_parameters']['partial_rotary_factor'] == 1


def test_dialogues_are_read_with_and_without_their_document(tmp_path, calls, monkeypatch):
    for name in ('whole_test', 'untuned', 'fixed'):
        monkeypatch.setattr(dialogue, name, lambda *_: None)
    (tmp_path / 'dog').mkdir()
    cmu_dog_test.write(tmp_path / 'dog', test_a=cmu_dog_test.dialogue(*cmu_dog_test.SAID))
    given = [f'--output={tmp_path}', f'--books={tmp_path}', f'--dialogues={tmp_path / "dog"}']
    run.main([*given, '--seeds=2', '--parts=dialogue', '--dialogue_steps=100'])
    runs = calls[1:]  # the first is the host
    assert budgets(runs) == {('cmu_dog', 58, 8, 4), ('cmu_dog', 100, 8, 4)}
    assert len(runs) == 2 * len(dialogue.ROWS)
    documents = dict(zip(dialogue.ROWS, (c.data.task.document for c in runs[::2]), strict=True))
    assert [label for label, kind in documents.items() if kind == 'none'] == list(documents)[:2]
    window, compressive, continuous, sticky = (config.model for config in runs[6::2])
    assert window.transformer_xl.memory_length == dialogue.WINDOW
    assert compressive.compressive.compressed_length * compressive.compressive.rate == (
        dialogue.WINDOW
    )
    assert continuous.infinity_former.sticky == 'none'
    assert sticky.infinity_former.sticky == 'sampled'
    (short,) = cmu_dog.read(runs[0].data.path, 'test')
    assert 'A shark.' in short.document and len(short.utterances) == 3
    assert not any(text in short.document for text in ('Good.', 'They swim.', 'The end.'))


def test_every_task_is_read_with_every_memory(tmp_path, calls):
    given = [f'--output={tmp_path}', f'--books={tmp_path}', f'--superglue={tmp_path}']
    run.main([*given, '--seeds=1', '--parts=superglue', '--superglue_steps=40'])
    runs = calls[1:]
    assert budgets(runs) == {('superglue', 40, 8, 4)}
    assert [(c.data.task.name, c.model.attention[0]) for c in runs] == [
        (task, memory) for task in superglue.TASKS for memory in superglue.MEMORIES
    ]
    assert {c.train.start_from for c in runs} == {str(tmp_path / 'exported')}


def test_responses_that_no_model_writes(tmp_path, monkeypatch):
    pytest.importorskip('rouge_score')
    pytest.importorskip('nltk')
    talk = cmu_dog_test.dialogue(('user1', 'so good'), ('user2', 'so good'), ('user1', 'bye'))
    cmu_dog_test.write(tmp_path, train_b=talk)
    config = host_config.get_config('tiny')
    config.data.path = str(tmp_path)
    monkeypatch.setattr(scores, 'experiment_of', lambda _: Experiment(config, None, None))
    references = [json.dumps(dict(reference=text)) for text in ('so good', 'never')]
    (tmp_path / 'responses.test.jsonl').write_text('\n'.join(references))
    dialogue.fixed(tmp_path, [0, 11, 23], tmp_path / 'fixed.json')
    found = provenance.saved(tmp_path / 'fixed.json')
    assert found['run']['seeds'] == [0, 11, 23]
    found = found['responses']
    (most, drawn) = found
    assert most == 'most frequent utterance ("so good", 2 times)'
    assert found[most][0]['f1'] == 50 and len(found[drawn]) == 3


def test_tables_of_dialogues_and_tasks(tmp_path):
    for seed in range(2):
        folder = dialogue.folder(tmp_path, 'document in context') / str(seed)
        told = dict(f1=5.0 + seed, rouge1=6.0, rougeL=4.0, meteor_exact_stem=3.0, responses=2)
        write(folder / 'dialogue.test.json', told)
        of_text = dict(test=dict(perplexity=30.0 + seed), reset=dict(perplexity=32.0 + seed))
        write(folder / 'numbers.json', of_text)
        write(folder / 'utterances.json', dict(perplexity=28.0 + seed))
        folder = tmp_path / 'superglue/CB/local' / str(seed)
        floor = dict(accuracy=0.5, f1=0.25, score=0.375)
        found = dict(examples=25, accuracy=0.5 + 0.1 * seed, f1=0.3, majority=floor)
        write(folder / 'superglue.test.json', found)
    untuned = dict(test=dict(perplexity=300.0), dialogue=told)
    write(dialogue.folder(tmp_path, dialogue.UNTUNED) / 'untuned.json', untuned)
    write(tmp_path / 'dialogue/fixed.json', {'responses': {'most frequent': [told | dict(f1=1.0)]}})
    measured = dict(scores=dict(bigram=dict(perplexity=50.0)), protocol='all of test')
    write(tmp_path / 'dialogue/floors/floors.json', measured)
    text = table.write(tmp_path)
    assert [line for line in text.splitlines() if line.startswith('|') and '---' not in line] == [
        '|  | perplexity | reset costs | F1 | ROUGE-1 | ROUGE-L | METEOR, exact and stem |',
        '| document in context | 28.50 (28.00 - 29.00) | 2.00 | 5.50 (5.00 - 6.00) | 6.00 | 4.00 | '
        '3.00 |',
        '| host, not tuned | 300.00 |  | 6.00 | 6.00 | 4.00 | 3.00 |',
        '| most frequent |  |  | 1.00 | 6.00 | 4.00 | 3.00 |',
        '| without a learned memory | perplexity |',
        '| bigram | 50.000 |',
        '| task | examples | most frequent class | `local` | `transformer_xl` | standard error |',
        '| CB, accuracy | 25 | 50.0 | 55.0 (50.0 - 60.0) |  | 10.0 |',
        '| CB, f1 | 25 | 25.0 | 30.0 |  | 10.0 |',
    ]


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
