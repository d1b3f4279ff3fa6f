"""The lifelong experiment: its tables, and where neighbours come from. Nothing is trained."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.lifelong import __main__ as experiment
from experiments.lifelong import fewrel, floors, origins, span_floors, speed
from longmem_jax.errors import UsageError
from longmem_jax.lifelong import episodic, heads
from longmem_jax.lifelong.data import qa, relations
from longmem_jax.lifelong.rows import Rows
from tests.lifelong.build_test import built_of
from tests.lifelong.small import small_config


def write_run(folder, right, forgetting):
    folder.mkdir(parents=True)
    accuracy = float(np.mean([np.mean(rows) for rows in right.values()]))
    result = dict(
        test=dict(accuracy=accuracy), tasks={name: float(np.mean(r)) for name, r in right.items()},
        memory_bytes=60_000, test_seconds=1.25, transfer=dict(forgetting=forgetting),
        matrix=[[0.5, 0.1], [accuracy, 0.9]],
    )  # fmt: skip
    (folder / 'results.json').write_text(json.dumps(result))
    np.savez(folder / 'right.npz', **{name: np.asarray(rows) for name, rows in right.items()})


def test_the_table_ranks_methods_and_compares_neighbours_on_the_rows_of_both(
    tmp_path, monkeypatch, capsys
):
    good = dict(yelp=np.ones(40), amazon=np.ones(40))
    half = dict(yelp=np.ones(40), amazon=np.zeros(40))
    write_run(tmp_path / 'replay' / 'i', half, 0.5)
    write_run(tmp_path / 'mbpa' / 'i', good, 0.1)
    write_run(tmp_path / 'mbpa' / 'ii', half, 0.2)
    given = [f'--output={tmp_path}', '--path=p', '--encoder=e', '--orders=i,ii', '--only_tables']
    monkeypatch.setattr(sys, 'argv', ['', *given, '--methods=replay,mbpa'])
    experiment.main()
    shown = [
        [cell.strip() for cell in line.strip('|').split('|')]
        for line in capsys.readouterr().out.splitlines()
    ]
    assert shown[2] == ['mbpa', '100.0', '50.0', '75.0 (50.0 - 100.0)', '15 (10 - 20)', '60', '1.2']
    assert shown[3][:3] == ['replay', '50.0', '']
    # Only order i is of both: all rows of one task are won, none of the other.
    assert shown[-1][:3] == ['mbpa - replay', '1', '+50.0']
    assert (tmp_path / 'first_last.png').stat().st_size > 1000


def test_runs_with_fewer_test_rows_are_compared_on_the_rows_of_both():
    many = experiment.Run({}, dict(a=np.array([1, 0, 0]), b=np.array([1, 1, 0])))
    few = experiment.Run({}, dict(b=np.array([0]), a=np.array([0, 1])))
    assert experiment.paired(many, few).tolist() == [[1, 0, 1], [0, 1, 0]]


def test_runs_get_their_order_and_the_bound_a_seed(tmp_path, monkeypatch):
    commands = []

    def run(command, **_):
        commands.append(command[3:])
        folder = next(part for part in command if part.startswith('--workdir=')).split('=', 1)[1]
        (tmp_path / folder / 'results.json').write_text('{}')
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(experiment.subprocess, 'run', run)
    monkeypatch.setattr(experiment, 'read', lambda options: {})
    given = [
        f'--output={tmp_path}',
        '--path=p',
        '--encoder=e',
        '--orders=ii,iv',
        '--methods=mtl,agem',
    ]
    monkeypatch.setattr(sys, 'argv', ['', *given, '--', '--config.train.log_every=7'])
    with pytest.raises(SystemExit, match='no finished runs'):
        experiment.main()
    assert len(commands) == 4
    assert 'stream=joint' in commands[1][0] and '--config.data.seed=1' in commands[1]
    assert (
        'method=agem,order=iv' in commands[3][0] and commands[3][-1] == '--config.train.log_every=7'
    )
    with pytest.raises(SystemExit, match='no finished runs'):
        experiment.main()
    assert len(commands) == 4, 'what was finished was trained again'
    # Results of other flags would be shown as those of what is asked for.
    monkeypatch.setattr(sys, 'argv', ['', *given, '--', '--config.train.log_every=8'])
    with pytest.raises(SystemExit, match='log_every=7, not with .*log_every=8.* another --output'):
        experiment.main()
    config = 'configs/lifelong_relations.py'
    numbered = [*given[:3], f'--config={config}', '--orders=2', '--methods=agem']
    monkeypatch.setattr(sys, 'argv', ['', *numbered])
    with pytest.raises(SystemExit, match='no finished runs'):
        experiment.main()
    assert commands[4][0] == f'--config={config}:tiny,path=e,method=agem'
    assert '--config.data.seed=2' in commands[4]
    monkeypatch.setattr(sys, 'argv', ['', *given[:-1], '--methods=mbpaa'])
    with pytest.raises(SystemExit):
        experiment.main()


def test_a_run_that_fails_says_why(tmp_path, monkeypatch):
    given = [f'--output={tmp_path}', '--path=p', '--encoder=/no/encoder', '--methods=agem']
    monkeypatch.setattr(sys, 'argv', ['', *given])

    def run(command, stdout, **_):
        stdout.write('Loading\nUsageError: no such encoder.\n')
        return subprocess.CompletedProcess(command, 2)

    monkeypatch.setattr(experiment.subprocess, 'run', run)
    with pytest.raises(SystemExit, match='failed: .*\nUsageError: no such encoder.\nsee .*log.txt'):
        experiment.main()


@pytest.mark.slow
def test_neighbours_are_found_for_all_test_rows(tmp_path):
    config = small_config(tmp_path, 'method=mbpa,order=i')
    built = built_of(config, tmp_path)
    state = built.first_state()
    state = state.replace(
        memory=episodic.write(
            state.memory,
            jnp.arange(2),
            jnp.eye(2, built.network.encoder.width),
            jnp.ones(2, bool),
        )
    )
    numbers, there, tasks, answers = origins.found_for(built, state)
    assert numbers.shape == there.shape == (5 * 4, built.fields['num_neighbours'])
    assert (there.sum(axis=1) == 2).all() and set(numbers[there]) == {0, 1}
    assert (tasks == np.repeat(np.arange(5), 4)).all() and len(answers) == 20
    with pytest.raises(UsageError, match='replay: has no keys; use mbpa'):
        other = small_config(tmp_path, 'method=replay')
        found = built_of(other, tmp_path)
        origins.found_for(found, found.first_state())


def test_neighbours_vote():
    """The most frequent answer, of a tie that of the nearest; those that are not there have no vote."""
    answers = np.array([[1, 2, 2], [3, 1, 2], [1, 2, 2], [4, 4, 4]])
    there = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [0, 0, 0]], bool)
    assert origins.votes(answers, there).tolist() == [2, 3, 1, -1]


@pytest.mark.slow
def test_adaptation_is_timed_and_the_same_for_all_chunks(monkeypatch, capsys):
    monkeypatch.setattr(speed, 'VOCABULARY', 300)
    monkeypatch.setattr(speed, 'LENGTH', 8)
    given = ['--rows=2', '--neighbours=2', '--steps=1', '--rounds=1', '--chunks=1,2']
    monkeypatch.setattr(sys, 'argv', ['', *given])
    speed.main()
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[0].split()[-1]) < 1e-5
    assert [line.split('|')[1].strip() for line in lines[3:]] == ['1', '2']


def test_counting_words_tells_classes_by_their_words():
    tokens = np.array([[5, 6, -1], [5, 7, 7], [8, 6, -1], [8, 7, -1]], np.int32)
    rows = Rows(tokens, np.zeros(tokens.shape, np.uint8), np.array([0, 0, 1, 1]))
    asked = Rows(tokens[[0, 2]], np.zeros((2, 3), np.uint8), np.array([0, 1]))
    wrong = Rows(tokens[[0, 2]], np.zeros((2, 3), np.uint8), np.array([1, 1]))
    found = floors.of_classes(rows, (asked, wrong), heads.Classes(2), 9)
    assert found['naive Bayes of words'] == [1.0, 0.5]
    assert found['one class of all'] == [0.5, 0.5]
    in_parts = floors.scores(rows, rows.answer, asked, 2, 9, at_once=3)
    np.testing.assert_array_equal(in_parts, floors.scores(rows, rows.answer, asked, 2, 9))
    assert floors.words(rows, 9)[1].tolist() == [0, 0, 0, 0, 0, 1, 0, 1, 0]


def test_rules_choose_among_the_candidates_of_a_row():
    names = np.array([[5, 2], [6, 2], [7, 2]], np.int32)  # 2 ends all of them
    tokens = np.array([[5, 8, 2], [6, 8, 2], [9, 8, 2]], np.int32)
    choice = heads.choose_from(np.array([0, 1, 2]), np.array([[1, -1], [0, 2], [0, 1]]))
    rows = Rows(tokens, np.zeros(tokens.shape, np.uint8), choice)
    found = floors.of_candidates(rows, (rows,), heads.Candidates(names), 10)
    assert found['naive Bayes of words'] == [1.0]
    # 0 and 1 were right in one of the three rows that had them, and 2 in one of two.
    assert found['right most often'] == pytest.approx([(1 / 2 + 0 + 1) / 3])
    # The last text has a token of no name: each of its three candidates is right in a third.
    assert found['tokens of the name'] == pytest.approx([(1 + 1 + 1 / 3) / 3])
    assert found['one candidate'] == pytest.approx([(1 / 2 + 1 / 3 + 1 / 3) / 3])


def test_rules_find_spans_in_the_context():
    # [CLS] 10 11 12 13 14 [SEP] 11 [SEP]
    tokens = np.array([[1, 10, 11, 12, 13, 14, 2, 11, 2]], np.int32)
    types = np.array([[0] * 7 + [1] * 2], np.uint8)
    rows = Rows(tokens, types, np.array([[[3, 3]]]))
    assert [int(each[0]) for each in span_floors.whole(rows)] == [1, 5]
    assert [int(each[0]) for each in span_floors.at_first(rows, 2)] == [1, 2]
    # Both neighbours of the question's token are as near: the first of them.
    assert [int(each[0]) for each in span_floors.nearest(rows, 1)] == [1, 1]
    found = span_floors.shares(rows, (rows,))
    assert found['the whole context'] == pytest.approx([2 / 6])
    assert found['the first 3 tokens'] == pytest.approx([2 / 4])


def fewrel_files(folder):
    def sentence(words, first, second):
        return dict(tokens=words.split('_'), h=['', '', [first]], t=['', '', [second]])

    train = {
        'P1': [
            sentence('Ann_ _married_Bob_.', [0], [3]),
            sentence('Carl_Roe_married_Dora_.', [0, 1], [3]),
            sentence('so_Eve_married_Finn_.', [1], [3]),
            sentence('Ira_married_Jo_.', [0], [2]),
        ],
        'P2': [sentence('Rome_lies_in_Italy_.', [0], [3])],
    }
    test = {
        'P1': [train['P1'][0], sentence('then_Gil_met_Hanna_.', [1], [3])],
        'P2': [sentence('in_Spain_lies_Vigo_.', [3], [1])],
    }
    folder.mkdir()
    for name, content in dict(
        train=train, test=test, pid2name={'P1': ['spouse', ''], 'P2': ['country', '']}
    ).items():
        (folder / f'{name}.json').write_text(json.dumps(content))
    text = 'Ann ran home. Bob sat in London.'
    asked = dict(question='Where?', answers=[dict(text='London', answer_start=25)])
    data = dict(data=[dict(paragraphs=[dict(context=text, qas=[asked])])])
    for file in fewrel.SQUAD.values():
        (folder / file).write_text(json.dumps(data))


def test_sentences_with_entities_become_relations_and_questions(tmp_path, monkeypatch):
    fewrel_files(tmp_path / 'given')
    given = [f'--fewrel={tmp_path}/given', f'--squad={tmp_path}/given', f'--output={tmp_path}']
    monkeypatch.setattr(sys, 'argv', ['', *given, '--candidates=2'])
    fewrel.main()
    found = relations.read(str(tmp_path / 'relations'), relations.SETTINGS)
    assert found.names == ['spouse', 'country']
    assert sorted(found.train.candidates.tolist()) == 4 * [[0, 1]] + [[1, 0]]
    assert 'Carl Roe , Dora : Carl Roe married Dora .' in found.train.sentences
    # The sentence that is trained on as well is not asked about.
    assert len(found.test.sentences) == 2
    asked = qa.read(str(tmp_path / 'questions'), qa.SETTINGS)

    def told(task, split):
        for each in asked[task][split]:
            context = next(each.contexts())
            yield each.text, [context.text[slice(*span)] for span in context.spans]

    assert [*told('trivia_web', 1)] == [('spouse of Gil ?', ['Hanna'])]
    assert [*told('trivia_wikipedia', 1)] == [('country of Vigo ?', ['Spain'])]
    assert ('spouse of Ann ?', ['Bob']) in [*told('trivia_web', 0)]
    assert [*told('quac', 1)][0] == ('which has the spouse Hanna ?', ['Gil'])
    assert ('which has the spouse Finn ?', ['Eve']) in [*told('quac', 0)]
    assert ('which has the spouse Dora ?', [qa.NO_ANSWER]) in [*told('quac', 0)], 'asked of Ira'
    context = next(asked['squad'][0][0].contexts())
    assert context.text == 'Bob sat in London.' and context.spans == ((11, 17),)
    monkeypatch.setattr(sys, 'argv', ['', *given, '--candidates=3'])
    with pytest.raises(SystemExit):
        fewrel.main()
