"""The comparison with peers: turns, the table, and a run of our side next to a made-up peer."""

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from experiments.speed import compare, history, ours, products
from experiments.speed.cases import CASES, TOY, Case
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.hosts import hosts

PEER = """
import ctypes
import os
import resource
from pathlib import Path

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for _ in range(3):  # by itself glibc maps blocks of 40 MB every time
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(40 << 20)
    ctypes.memset(block, 1, 40 << 20)
    libc.free(block)
problems = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
pages = 'kept' if problems < 1000 else 'own'
Path(__file__).with_name('pages').write_text(pages)

def build(settings, sizes):
    calls = Path(__file__).with_name('calls')
    def call():
        calls.open('a').write(f'{settings["num_keys"]} {sizes.width}\\n')
        print('not an answer')
        return 1.5
    return call
"""


class Recorded:
    """A side that notes when it is asked."""

    def __init__(self, name: str, log: list[str]):
        self.name, self.log = name, log

    def wait(self) -> None:
        self.log.append(f'{self.name} is ready')

    def step(self) -> None:
        self.log.append(self.name)


def test_sides_take_turns():
    log = []
    compare.take_turns([Recorded('a', log), Recorded('b', log)], 3, 0.0)
    assert log == ['a is ready', 'b is ready', *['a', 'b'] * 3]


def test_ratios_are_above_one_where_ours_is_faster():
    slow = compare.summary([dict(wall=w, cpu=2 * w) for w in (30.0, 10.0, 20.0)])
    fast = compare.summary([dict(wall=w, cpu=w) for w in (5.0, 4.0, 6.0)])
    assert slow['wall'] == {'median': 20.0, 'least': 10.0}
    ratio = compare.ratios(slow, fast)
    assert ratio == {'wall': {'median': 4.0, 'least': 2.5}, 'cpu': {'median': 8.0, 'least': 5.0}}
    result = dict(name='n', label='l', peer=slow, ours=fast, ratio=ratio)
    alone = dict(name='m', label='l', ours=fast)
    cells = [line.split(' | ') for line in compare.as_table([result, alone]).splitlines()]
    assert cells[2][2] == '20.0 (10.0)' and cells[2][6] == '4.00 (2.50)'
    assert cells[3][4:6] == ['5.0 (4.0)'] * 2 and len({len(line) for line in cells}) == 1


@pytest.mark.parametrize('adam', [False, True])
def test_cases_with_adam_learn_and_others_do_not(adam):
    case = CASES['product_keys']['512_adam']
    layer = case.layer | dict(num_keys=8, top_k=4)
    step = ours.build(dataclasses.replace(case, layer=layer, adam=adam), TOY)
    first, second = step(), step()
    assert (second < first) if adam else (second == first)


def test_prompts_are_those_of_the_decoder_in_a_folder():
    """The first of two prompts is continued as by reading all of it again for every token."""
    folder = Path(__file__).parent / 'goldens/llama/hf'
    host = hosts.find(folder)
    model = hosts.make(host.plain, 16)
    params = hosts.load(host, model, report=lambda line: None)
    text = np.random.default_rng(0).integers(0, 61, (2, 9))[:1]
    for _ in range(3):
        reader = Reader(model, params, fresh_state(model, params, 1), np.zeros((1, 0), np.int32))
        reader.read(text)
        text = np.append(text, [[int(reader.logits.argmax())]], axis=1)
    step = ours.build(Case('', prompt=9, drawn=3, texts=2), TOY, str(folder))
    assert step() == step() == text[0, -1]


def test_every_peer_has_a_file():
    folder = Path(compare.__file__).with_name('peers')
    assert {path.stem for path in folder.glob('*.py')} == set(CASES)


def test_an_unknown_case_is_named(capsys):
    with pytest.raises(SystemExit):
        compare.main(['--peer=infini', '--case=fixed'])
    assert '--peer=infini has delta' in capsys.readouterr().err


@pytest.mark.slow
def test_our_side_runs_next_to_a_peer(tmp_path, capsys):
    """Both steps are counted and timed; what the peer prints is no answer."""
    (tmp_path / 'made_up_peer.py').write_text(PEER)
    output = tmp_path / 'results' / 'speed.json'
    options = ['--peer=product_keys', '--case=128', '--toy', '--rounds=2', '--fill=1', '--pause=0']
    peer = [f'--checkout={tmp_path}', '--module=made_up_peer', '--pages=own']
    (result,) = compare.main([*options, *peer, f'--output={output}'])
    assert (tmp_path / 'pages').read_text() == 'own', 'a peer must not have the pages of a command'
    assert result['pages'] == 'own'
    assert (tmp_path / 'calls').read_text() == '128 16\n' * 3
    assert [step['loss'] for step in result['peer']['steps']] == [1.5] * 2
    assert len({step['loss'] for step in result['ours']['steps']}) == 1
    assert result['ours']['software'].startswith('jax') and result['ratio']['wall']['median'] > 0
    assert json.loads(output.read_text()) == [result]
    assert 'product_keys 128' in capsys.readouterr().out


def test_a_side_that_fails_ends_the_run(tmp_path):
    (tmp_path / 'broken_peer.py').write_text('raise ValueError("of the peer")')
    options = ['--peer=product_keys', '--case=128', '--toy', '--rounds=1', '--fill=0']
    with pytest.raises(SystemExit, match='the peer product_keys ended with exit code 1'):
        compare.main([*options, f'--checkout={tmp_path}', '--module=broken_peer'])


def test_products_alone(capsys):
    assert products.gigaflops('scores') == pytest.approx(2e-9 * 16 * 128 * 64 * 1152)
    with pytest.raises(SystemExit):
        products.main(['--rounds=0'])
    assert 'give at least 1' in capsys.readouterr().err


@pytest.mark.slow
def test_products_are_timed_without_pytorch(capsys):
    products.main(['--rounds=1'])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(products.PRODUCTS) and 'torch' not in lines[0]


@pytest.mark.parametrize('name', history.SET)
def test_a_case_travels_to_an_earlier_version_as_what_differs_from_none(name):
    fields = json.loads(json.dumps(history.fields_of(history.SET[name])))
    case = dataclasses.replace(Case(**fields), peer={}, fill=0)
    assert case == dataclasses.replace(history.SET[name], peer={}, fill=0)
    assert not {'sizes', 'peer', 'fill'} & set(fields)


def rounds(*milliseconds: float) -> list[dict[str, float]]:
    return [dict(cpu=each, wall=each, most=1.0) for each in milliseconds]


@pytest.mark.parametrize(
    ('now', 'slower'),
    [
        ((10.8, 10.7, 10.6, 10.9), True),
        ((10.4, 10.4, 10.4, 10.4), False),  # not by more than 5 %
        ((9.0, 9.5, 12.0, 12.0), False),  # a quarter of the rounds was not slower at all
    ],
)
def test_slower_is_what_most_rounds_say(now, slower):
    before = rounds(10.0, 10.0, 10.0, 10.0)
    result = dict(name='linear', ratio=history.ratio(before, rounds(*now)))
    result |= dict(before=compare.summary(before), now=compare.summary(rounds(*now)))
    assert history.is_slower(result) == slower
    last = history.report([result]).splitlines()[-1]
    assert last == f'Slower by more than 5%: {"linear" if slower else "nothing"}.'


@pytest.mark.parametrize(
    ('option', 'said'),
    [
        ('--before=no_such_tag', "'no_such_tag' is no folder"),
        ('--before=tests', 'tests has no longmem_jax'),
        ('--pause=-1', 'give at least 0'),
        ('--rounds=0', 'give at least 1'),
        ('--output=tests', 'is a folder'),
    ],
)
def test_what_cannot_be_compared_is_said(option, said, capsys, monkeypatch):
    monkeypatch.chdir(compare.ROOT)
    with pytest.raises(SystemExit):
        history.main(['--toy', option])
    assert said in capsys.readouterr().err


def test_a_release_is_the_newest_tag(tmp_path):
    def git(*arguments: str) -> None:
        who = ['-c', 'user.name=a', '-c', 'user.email=a@b.c']
        subprocess.run(['git', '-C', str(tmp_path), *who, *arguments], check=True)

    def commit(words: str) -> None:
        (tmp_path / 'experiments/speed/ours.py').write_text(words)
        git('add', '.')
        git('commit', '-qm', words)

    (tmp_path / 'longmem_jax').mkdir()
    (tmp_path / 'longmem_jax/__init__.py').touch()
    (tmp_path / 'experiments/speed').mkdir(parents=True)
    git('init', '-q')
    commit('first')
    git('tag', 'v0.1.0')
    with pytest.raises(ValueError, match='no commit before has'), history.tree_of('', tmp_path):
        pass
    commit('second')
    git('tag', 'v0.2.0')  # of this commit: what it is compared with is the one before
    for version, words in (('', 'first'), ('HEAD', 'second'), (str(tmp_path), 'second')):
        with history.tree_of(version, tmp_path) as (folder, said):
            assert '(' in said
            assert (folder / 'experiments/speed/ours.py').read_text() == words


# Our side of a version that says by its loss which one it is.
VERSION = """
def build(case, sizes):
    assert (case.config, sizes.width) == ('memory=linear', 16)
    return lambda: {loss} + 0 * sum(range(100_000))
"""


def version(folder: Path, loss: float) -> Path:
    """The files that a worker imports."""
    (folder / 'longmem_jax').mkdir(parents=True)
    (folder / 'experiments/speed').mkdir(parents=True)
    for name in ('longmem_jax', 'experiments'):
        (folder / name / '__init__.py').touch()
    shutil.copy(compare.ROOT / 'experiments/speed/cases.py', folder / 'experiments/speed')
    (folder / 'experiments/speed/ours.py').write_text(VERSION.format(loss=loss))
    return folder.resolve()


def test_both_versions_are_timed_in_turns(tmp_path, capsys, monkeypatch):
    """The version before is the one of the folder, not the library that is installed."""
    before = version(tmp_path / 'before', 2.0)
    monkeypatch.setattr(history, 'ROOT', version(tmp_path / 'now', 3.0))
    output = tmp_path / 'results.json'
    options = ['--case=linear', '--toy', '--rounds=2', '--pause=0', f'--output={output}']
    (result,) = history.main([f'--before={before}', *options])
    losses = [[step['loss'] for step in result[key]['steps']] for key in ('before', 'now')]
    assert losses == [[2.0] * 2, [3.0] * 2]
    assert json.loads(output.read_text()) == [result]
    assert '| linear |' in capsys.readouterr().out
    (before / 'experiments/speed/ours.py').write_text('raise ValueError("of that version")')
    assert history.main([f'--before={before}', *options]) == []
    said = capsys.readouterr().out
    assert 'linear is left out: linear, before, ended with exit code 1' in said
    assert said.endswith('Nothing was timed. Left out: linear.\n')


@pytest.mark.slow  # a process that compiles a model
def test_a_version_is_timed_with_its_own_library(tmp_path):
    for name in ('longmem_jax', 'experiments', 'configs'):
        code = shutil.ignore_patterns('*.json', '*.png', '__pycache__')
        shutil.copytree(compare.ROOT / name, tmp_path / name, ignore=code)
    (result,) = history.main(
        [f'--before={tmp_path}', '--case=linear', '--toy', '--rounds=1', '--pause=0']
    )
    (before,), (now,) = (result[key]['steps'] for key in ('before', 'now'))
    assert before['loss'] == now['loss']
