"""A host with a memory, as a user has it: generate, remember a book, train in part, export."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from configs import host as host_config
from experiments.hosts.blimp import blimp
from longmem_jax.commands.generate import generate
from longmem_jax.commands.generate_all import generate_all
from longmem_jax.commands.score import score
from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.commands.train import train
from longmem_jax.data.documents import Document
from longmem_jax.data.learn_tokenizer import learn
from longmem_jax.errors import UsageError
from longmem_jax.hosts import export as writing
from longmem_jax.hosts import hosts, model_fields
from longmem_jax.hosts.commands.chat import template_of
from longmem_jax.hosts.commands.export import export
from longmem_jax.hosts.commands.lm_eval import evaluate_tasks
from longmem_jax.layers import low_rank
from longmem_jax.microscope.inspect import inspect
from tests import toys
from tests.commands.train_test import experiment, texts  # noqa: F401  (a fixture)
from tests.hosts.commands.blimp_test import paradigm
from tests.hosts.gguf_files import FOLDER

SHAPE = dict(
    model_type='gpt2', vocab_size=300, n_layer=2, n_embd=32, n_head=2, n_positions=32,
    activation_function='gelu_new',
)  # fmt: skip
TASKS = Path(__file__).parents[1] / 'evaluation' / 'lm_eval_tasks'
BOOK = 'alpha beta gamma delta ' * 30


@pytest.fixture(scope='module')
def host(tmp_path_factory):
    """The folder of a host with a tokenizer, and random parameters."""
    folder = tmp_path_factory.mktemp('hosts') / 'host'
    model = model_fields.model_of(SHAPE, 'config.json')
    params = toys.parameters(hosts.make(model, 8))
    writing.save(folder, model, params)
    learn('bpe', [Document('book', BOOK.encode())], 280, folder / 'tokenizer.json')
    return str(folder)


def prompts_in(folder, *prompts):
    """A file of prompts."""
    file = folder / 'prompts.jsonl'
    file.write_text(''.join(json.dumps(dict(text=text)) + '\n' for text in prompts))
    return str(file)


def config_of(host, texts, argument, path=True):  # noqa: F811
    config = host_config.get_config(f'tiny,path={host},segment=8,{argument}')
    config.data.source, config.data.path = 'text', str(texts)
    config.train.update(num_steps=2, evaluate_every=2)
    config.evaluate.update(max_segments=2, max_test_segments=2)
    config.checkpoint.every, config.generate.sample_length = 2, 0
    config.mesh = dict(data=1, fsdp=1, tensor=1, memory=1)
    return config


@pytest.mark.slow
def test_a_host_reads_a_book_into_a_file_and_continues(host, texts, tmp_path, capsys):  # noqa: F811
    run = experiment(config_of(host, texts, 'memory=infini'), tmp_path / 'run')
    book, saved = tmp_path / 'book.txt', str(tmp_path / 'book.memory')
    book.write_text(BOOK)
    options = dict(length=6, temperature=0.0)
    generate(run, f'@{book}', dict(length=0), save_state=saved, out=io.StringIO())
    said = ' '.join(capsys.readouterr().err.split())
    assert 'Loaded' in said and 'new: block_0,1/attention/gate' in said
    assert 'memory saved' in said
    question = ' alpha beta'
    asked = generate(run, question, options, load_state=saved, out=io.StringIO())
    whole = generate(run, BOOK + question, options, out=io.StringIO())
    assert asked == whole
    beams = options | dict(beams=2)
    found = generate(run, question, beams, load_state=saved, out=io.StringIO())
    assert found == generate_all(run, prompts_in(tmp_path, question), beams, load_state=saved)[0]


@pytest.mark.parametrize(
    'memory, options',
    [('infini', dict(top_p=1.0, seed=3)), ('none', dict(temperature=0.0))],
    ids=['drawn, from a memory file', 'the most likely'],
)
def test_many_prompts_are_continued_together_as_each_alone(
    memory,
    options,
    host,
    texts,  # noqa: F811
    tmp_path,
    capsys,
):
    """The prompts are of several lengths, and two are read and continued at a time."""
    config = config_of(host, texts, f'memory={memory}')
    config.evaluate.num_lanes = 2
    run, saved = experiment(config, tmp_path / 'run'), ''
    if memory != 'none':
        saved = str(tmp_path / 'book.memory')
        generate(run, 'beta ' * 9, dict(length=0), save_state=saved, out=io.StringIO())
    asked, written = ['alpha beta ' * 3, 'gamma', ' delta alpha'], tmp_path / 'written.jsonl'
    options = options | dict(length=9)
    each = [generate(run, text, options, load_state=saved, out=io.StringIO()) for text in asked]
    assert len(set(each)) == 3
    file = prompts_in(tmp_path, *asked)
    assert generate_all(run, file, options, load_state=saved, output=str(written)) == each
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert lines == [
        dict(text=text, continuation=more) for text, more in zip(asked, each, strict=True)
    ]
    said = capsys.readouterr().err
    assert 'prompts 1 to 2 of 3, ' in said and 'prompt 3 of 3, ' in said


@pytest.mark.slow
def test_a_page_of_a_host_with_low_rank_parts(host, texts, tmp_path):  # noqa: F811
    run = experiment(config_of(host, texts, 'memory=memorizing,lora=2'), tmp_path / 'run')
    text, out = BOOK[:200], io.StringIO()
    seen = inspect(run, text, str(tmp_path / 'page.html'), out=out)
    scored = score(run, text, out=io.StringIO())
    np.testing.assert_allclose(seen.nats, scored.nats, atol=2e-4)
    held = [name for layer in seen.layers.values() for name in layer.held]
    assert 'entries' in held and 'page: ' in out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize('checkpoints', ['newest', 'all'])
def test_blimp_scores_a_host_that_was_not_trained(checkpoints, host, texts, tmp_path, capsys):  # noqa: F811
    """As its only step, 0; the memory that is put into it is empty before every sentence."""
    paradigm(tmp_path, 'words', 'syntax', 'alpha beta', 'alpha zzzz')
    rows = {}
    for memory in ('none', 'infini'):
        run = experiment(config_of(host, texts, f'memory={memory}'), tmp_path / memory)
        rows[memory] = blimp(run, str(tmp_path), checkpoints=checkpoints)
        assert 'Loaded 28 tensors' in ' '.join(capsys.readouterr().out.split())
    assert [row['step'] for row in rows['none']] == [0] and rows['none'] == rows['infini']


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_lm_eval_scores_a_host_that_was_not_trained(host, texts, tmp_path, monkeypatch):  # noqa: F811
    pytest.importorskip('lm_eval')  # the extra [eval]
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    monkeypatch.setattr('datasets.config.HF_DATASETS_CACHE', tmp_path)
    monkeypatch.chdir(TASKS.parents[3])  # the tasks name their data from the root
    run, name = experiment(config_of(host, texts, 'memory=none'), tmp_path / 'run'), 'longmem_words'
    results = evaluate_tasks(run, [f'{name}_rolling'], include_path=str(TASKS), local=True)
    # A model that has learned nothing: uniform over its entries, or nearly.
    assert 1 < results['results'][f'{name}_rolling']['bits_per_byte,none'] < 9


def test_no_source_is_not_the_folder_that_one_is_in(host, texts, tmp_path, monkeypatch):  # noqa: F811
    """Nor are random parameters scored there as if they were a host's."""
    config = config_of(host, texts, 'memory=infini')
    config.train.start_from = ''
    monkeypatch.chdir(host)
    assert hosts.is_host('.') and hosts.is_name('.') and not hosts.is_name('')
    with pytest.raises(UsageError, match='no checkpoint there'):
        newest_parameters(experiment(config, tmp_path / 'run'), print)


@pytest.mark.slow
def test_a_gguf_file_is_scored_trained_and_exported(texts, tmp_path, capsys):  # noqa: F811
    """As a folder is; it has its tokenizer and its chat template inside."""
    file = FOLDER / 'qwen2.gguf'
    run = experiment(config_of(file, texts, 'memory=infini'), tmp_path / 'run')
    scored = score(run, BOOK, out=io.StringIO())
    assert np.isfinite(scored.nats[1:]).all() and 'end at <|end|>' in capsys.readouterr().err
    answer = dict(length=4, temperature=0.0)
    template = template_of(run)
    assert isinstance(generate(run, 'alpha', answer, template=template, out=io.StringIO()), str)
    train(run)
    assert 'of ' + str(file) in ' '.join(capsys.readouterr().out.split())
    export(run, str(tmp_path / 'out'))
    found = hosts.find(tmp_path / 'out')
    assert found.model.attention == ('infini', 'infini')
    params = hosts.load(found, hosts.make(found.model, 8), report=lambda line: None)
    last, step = newest_parameters(run, print)
    assert step == 2
    for path, leaf in toys.by_path(last).items():
        np.testing.assert_array_equal(toys.by_path(params)[path], leaf, err_msg=path)
    card = (tmp_path / 'out' / 'README.md').read_text()
    assert 'parameters of `qwen2.gguf`.' in card and 'base_model:' not in card
    # The folder has the same tokenizer and template.
    folder = config_of(tmp_path / 'out', texts, 'memory=none')
    again = experiment(folder, tmp_path / 'again')
    assert again.tokenizer.fingerprint() == run.tokenizer.fingerprint()
    assert template_of(again)(b'alpha') == template(b'alpha')


@pytest.mark.slow
def test_a_frozen_host_learns_by_its_memory_and_low_rank_parts(host, texts, tmp_path, capsys):  # noqa: F811
    config = config_of(host, texts, 'memory=infini,lora=2,frozen')
    run = experiment(config, tmp_path / 'run')
    first, step = newest_parameters(run, print)
    assert step == 0
    train(run)
    assert 'new: block_0,1/attention/gate' in ' '.join(capsys.readouterr().out.split())
    last, step = newest_parameters(experiment(config, tmp_path / 'run'), print)
    assert step == 2
    moved = {
        path
        for path, leaf in toys.by_path(last).items()
        if np.any(leaf != toys.by_path(first)[path])
    }
    assert {path.rpartition('/')[2] for path in moved} <= {'a', 'b', 'gate'}
    assert any(path.endswith('lora/b') for path in moved)
    assert 'block_0/attention/gate' in moved
    # What was added is a small file, which makes the same model of an untouched host.
    file = tmp_path / 'memory.safetensors'
    export(run, graft=str(file))
    grafted = experiment(config_of(host, texts, f'graft={file}'), tmp_path / 'grafted')
    assert grafted.config.model.attention == ('infini', 'infini')
    assert grafted.config.model.lora.rank == 2 and grafted.config.train.segment_length == 8
    same, step = newest_parameters(grafted, print)
    assert step == 0 and toys.by_path(same).keys() == toys.by_path(last).keys()
    for path, leaf in toys.by_path(last).items():
        np.testing.assert_array_equal(toys.by_path(same)[path], leaf, err_msg=path)
    scored = [score(each, BOOK, out=io.StringIO()).nats for each in (run, grafted)]
    np.testing.assert_array_equal(*scored, err_msg='it reads texts as its training did')
    export(run, str(tmp_path / 'out'))
    card = (tmp_path / 'out' / 'README.md').read_text()
    assert 'parameters of `host`.' in card and str(tmp_path.parent) not in card
    found = hosts.find(tmp_path / 'out')
    assert found.model.attention == ('infini', 'infini') and not found.model.lora.rank
    params = hosts.load(found, hosts.make(found.model, 8), report=lambda line: None)
    for path, leaf in toys.by_path(low_rank.merged(last)).items():
        np.testing.assert_array_equal(toys.by_path(params)[path], leaf, err_msg=path)
    # The exported folder is a host with this memory already.
    again = host_config.get_config(f'tiny,path={tmp_path / "out"},segment=8,memory=none')
    assert again.model.attention == ('infini', 'infini')


@pytest.mark.slow
def test_a_host_without_a_memory_is_trained_and_scored_by_itself(host, texts, tmp_path, capsys):  # noqa: F811
    """Texts are longer than its 32 positions; begin tokens are those of training afterwards."""
    run = experiment(config_of(host, texts, 'memory=none,context=16'), tmp_path / 'run')
    before = score(run, BOOK, out=io.StringIO())
    said = capsys.readouterr().err
    assert 'scored in windows' in said and 'texts begin with their first token' in said
    assert np.isnan(before.nats[0]) and np.isfinite(before.nats[1:]).all()
    train(run)
    said = ' '.join(capsys.readouterr().out.split())
    assert 'cache: 16 tokens x 4 texts, float32' in said and 'in windows of whole segments' in said
    after = score(run, BOOK, out=io.StringIO())
    assert np.isfinite(after.nats).all()
    assert 'texts begin with' in capsys.readouterr().err
