"""Benchmarks as tasks of lm-eval: files, and a model of the harness that knows the answers."""

import json

import pytest

pytest.importorskip('lm_eval')  # the extra [eval]

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.api.model import LM  # noqa: E402

from longmem_jax.data.sets.ruler import score  # noqa: E402
from longmem_jax.errors import UsageError  # noqa: E402
from longmem_jax.hosts.commands.lm_eval_files import write_tasks  # noqa: E402
from longmem_jax.hosts.evaluation.lm_eval import task_manager  # noqa: E402
from tests.data.ruler_test import config_of, few_words  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings('ignore')  # the harness's libraries warn


class Knowing(LM):
    """Writes two of three expected words, in capitals."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers

    def generate_until(self, requests, disable_tqdm=False):
        assert all(request.args[1]['max_gen_toks'] == 50 for request in requests)
        return [
            f'They are {" and ".join(self.answers[request.args[0]][1:])}.'.upper()
            for request in requests
        ]

    def loglikelihood(self, requests, disable_tqdm=False):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


@pytest.mark.slow
def test_a_model_of_the_harness_is_scored(tmp_path, monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    monkeypatch.setattr('datasets.config.HF_DATASETS_CACHE', tmp_path / 'cache')
    config = config_of(tmp_path, 'fwe', 900, 1200)
    files = write_tasks(config, str(tmp_path / 'to'))
    names = [file.stem for file in files]
    assert names == ['ruler_fwe_900', 'ruler_fwe_1200']
    answers = {}
    for file in files:
        lines = file.with_suffix('.jsonl').read_text().splitlines()
        assert len(lines) == 3
        for sample in map(json.loads, lines):
            answers[sample['input'] + sample['answer_prefix']] = sample['outputs']
    manager = task_manager(names, str(tmp_path / 'to'), local=True)
    found = simple_evaluate(Knowing(answers), tasks=names, task_manager=manager)['results']
    assert [found[name]['string_match_all,none'] for name in names] == pytest.approx([2 / 3] * 2)


def test_questions_have_another_score_and_texts_none(tmp_path):
    (file,) = write_tasks(config_of(tmp_path, 'qa_1', 2600), str(tmp_path / 'to'))
    assert 'string_match_part' in file.read_text() and file.parent == tmp_path / 'to'


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(source='stdlib'), 'has no prompts to answer; .*ruler'),
        (dict(source='recall'), 'has no prompts to answer; .*ruler'),
        (dict(folder=''), 'give the folder'),
        (dict(lengths=(0,)), 'must be rising ints'),
    ],
)
def test_problems(change, message, tmp_path):
    config = config_of(tmp_path, 'fwe', *change.get('lengths', (900,)))
    config.data.source = change.get('source', 'ruler')
    with pytest.raises(UsageError, match=message):
        write_tasks(config, change.get('folder', str(tmp_path)))


def test_scores():
    assert score.string_match_all('It is ABC, no: de', ['abc', 'DE', 'f', 'g']) == 0.5
    assert score.string_match_part('The ANSWER', ['answer', 'other']) == 1.0
    assert score.string_match_part('nothing', ['answer']) == 0.0
