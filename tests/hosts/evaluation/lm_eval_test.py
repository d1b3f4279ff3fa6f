"""The model of lm-eval: its three methods, and whole tasks of local files."""

import json
import types
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('lm_eval')  # the extra [eval]

from longmem_jax.commands.train import train  # noqa: E402
from longmem_jax.data.tokenizers import Bytes  # noqa: E402
from longmem_jax.errors import UsageError  # noqa: E402
from longmem_jax.generation.contexts import num_full  # noqa: E402
from longmem_jax.generation.reader import Reader, fresh_state  # noqa: E402
from longmem_jax.hosts.commands.lm_eval import evaluate_tasks  # noqa: E402
from longmem_jax.hosts.evaluation.lm_eval import LongMemLM, simple_evaluate, task_manager  # noqa: E402
from tests.commands.train_test import experiment, small_config, texts  # noqa: E402, F401

# Whole runs; the harness's libraries warn.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]
TASKS = Path(__file__).parent / 'lm_eval_tasks'
LENGTH = 8


@pytest.fixture(scope='module', autouse=True)
def offline(tmp_path_factory):
    """No network, and no files outside of the test's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('HF_HUB_OFFLINE', '1')
        patch.setattr('datasets.config.HF_DATASETS_CACHE', tmp_path_factory.mktemp('cache'))
        patch.chdir(Path(__file__).parents[3])  # the tasks name their data from the root
        yield


@pytest.fixture(scope='module')
def trained(texts, tmp_path_factory):  # noqa: F811
    config = small_config(texts)
    config.train.num_steps = config.train.evaluate_every = config.checkpoint.every = 60
    config.optimizer.learning_rate = 1e-2
    run = experiment(config, tmp_path_factory.mktemp('run'))
    train(run)
    return run


@pytest.fixture(scope='module')
def model(trained):
    params, _ = trained.restore_parameters()
    return LongMemLM.of_experiment(trained, params, batch_size=4)


def requests(*arguments):
    return [types.SimpleNamespace(args=each) for each in arguments]


def test_a_likely_word_is_likelier(model):
    context = 'alpha beta ' * 4
    (word, _), (other, _) = model.loglikelihood(requests((context, ' gamma'), (context, ' zzzzz')))
    assert word > other + 5


def test_a_context_is_read_once_for_all_its_requests(model):
    context = 'alpha beta gamma ' * 6
    before = model.likelihood.reader.tokens_read
    model.loglikelihood(
        requests(*((context, f' {word}') for word in ('a', 'beta', 'gamma', 'd', 'e')))
    )
    read = model.likelihood.reader.tokens_read - before
    assert read == num_full(len(context), LENGTH)


def test_a_document_is_the_sum_of_its_parts(model):
    """So the memory is carried over the borders between them, and nothing is scored twice."""
    document = 'alpha beta gamma delta ' * 5
    (whole,) = model.loglikelihood_rolling(requests((document,)))
    (left, _), (right, _) = model.loglikelihood(
        requests(('', document[:41]), (document[:41], document[41:]))
    )
    assert whole == pytest.approx(left + right, rel=1e-4)
    (alone,) = model.loglikelihood_rolling(requests((document[41:],)))
    assert alone != pytest.approx(right, rel=1e-4)


def test_blanks_at_the_end_of_a_context_belong_to_the_continuation(model):
    (text, continuation) = model.pair('alpha  ', 'beta')
    assert Bytes().decode(text) == b'alpha' and text[0] == 256
    assert Bytes().decode(continuation) == b'  beta'


def alone(model, context, length):
    """The likeliest continuation of a text that is read by itself."""
    reader, tokens = model.likelihood.reader, [256, *context.encode()]
    fresh = fresh_state(reader.model, reader.params, 1)
    single = Reader(reader.model, reader.params, fresh, np.zeros((1, 0), np.int32))
    single.read(np.asarray([tokens], np.int32))
    options = dict(vocab_size=257, temperature=0.0, top_k=0, top_p=1.0, seed=0)
    drawn = np.concatenate([chunk[0] for chunk in single.write(length, **options)])
    return bytes(drawn.tolist()).decode('utf-8', 'replace')


def test_generation_is_greedy_up_to_the_stop_text(model):
    contexts = ['alpha beta al', 'gam', 'delta ' * 5 + 'delt', 'be', 'alpha bet']
    settings = {'until': [' ', 'x'], 'max_gen_toks': 20}
    found = model.generate_until(requests(*((context, settings) for context in contexts)))
    whole = [alone(model, context, 20) for context in contexts]
    assert all(' ' in text for text in whole)
    assert found == [text.partition(' ')[0] for text in whole]
    (longer,) = model.generate_until(requests(('gam', {'until': [], 'max_gen_toks': 19})))
    assert longer == whole[1][:19]
    (_, greedy), (_, wrong) = model.loglikelihood(
        requests(('gam', longer), ('gam', longer[:-1] + 'z'))
    )
    assert greedy and not wrong


def test_the_same_context_is_drawn_from_several_times(model):
    """In other batches too: tasks that vote repeat a request."""
    settings = {'until': [], 'max_gen_toks': 9, 'do_sample': True, 'temperature': 3.0}
    found = model.generate_until(requests(*[('alpha', settings)] * 8))
    assert len({*found}) == 8
    assert model.generate_until(requests(*[('alpha', settings)] * 8)) == found


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'num_beams': 3}, 'num_beams: not known here; allowed are until'),
        ({'until': ['a', 3]}, "until = \\('a', 3\\): must be texts"),
        ({'max_gen_toks': '7'}, "max_gen_toks = '7': must be a whole number of tokens"),
        ({'max_gen_toks': -1}, 'max_gen_toks = -1: must be'),
        ({'temperature': -0.5}, 'temperature = -0.5: must be a number that is not negative'),
    ],
)
def test_wrong_settings_are_refused(model, settings, message):
    with pytest.raises(UsageError, match=message):
        model.generate_until(requests(('a', settings)))


class Joining(Bytes):
    """Writes `ab` as one token, that of `a`."""

    def encode(self, text):
        return super().encode(text.replace(b'ab', b'a'))


def test_a_continuation_always_has_tokens(model):
    """Where it is joined to the last token of the context; its score would be that of nothing, 0."""
    joining = LongMemLM(model.likelihood, Joining(), model.conventions)
    assert joining.pair('a', 'b')[1].tolist() == [98] == joining.pair('xa', 'b')[1].tolist()
    assert joining.pair('a', 'bc')[1].tolist() == [99] and joining.pair('a', '')[1].size == 0


def test_tasks_of_yaml_files(trained, capsys):
    names = ['longmem_words_choice', 'longmem_words_rolling', 'longmem_words_generate']
    results = evaluate_tasks(trained, names, include_path=str(TASKS), local=True)
    scores = results['results']
    assert scores['longmem_words_choice']['acc,none'] == 1
    assert 0 < scores['longmem_words_rolling']['bits_per_byte,none'] < 3
    assert scores['longmem_words_generate']['exact_match,none'] <= 1
    written = json.loads((trained.workdir / 'lm_eval.json').read_text())
    assert written['results'].keys() == scores.keys()
    assert 'longmem_words_choice' in capsys.readouterr().out


def test_a_metric_that_is_not_known_is_one_message(trained, tmp_path):
    text = (TASKS / 'longmem_words_choice.yaml').read_text()
    assert 'metric: acc\n' in text
    text = text.replace('metric: acc\n', 'metric: acuracy\n')
    (tmp_path / 'task.yaml').write_text(text.replace('longmem_words_choice', 'scoreless'))
    with pytest.raises(
        UsageError, match='--tasks=scoreless: no metric gave a score; .*metric_list'
    ):
        evaluate_tasks(trained, ['scoreless'], include_path=str(tmp_path), local=True)
    # The scores of other tasks are not lost.
    assert 'scoreless' in json.loads((trained.workdir / 'lm_eval.json').read_text())['results']
    # A group needs none of its own.
    (tmp_path / 'task.yaml').write_text((TASKS / 'longmem_words_choice.yaml').read_text())
    (tmp_path / 'group.yaml').write_text('group: some\ntask:\n  - longmem_words_choice\n')
    evaluate_tasks(trained, ['some'], include_path=str(tmp_path), local=True)


@pytest.mark.parametrize(
    'content, said',
    [
        ('{"text": \n', 'JSON'),
        ('', 'a file is empty'),
        (None, 'Unable to find .*samples.jsonl'),
        ('{"text": "a"}\n', "'document' is undefined"),
    ],
)
def test_data_that_cannot_be_read_are_one_message(trained, tmp_path, content, said):
    if content is not None:
        (tmp_path / 'samples.jsonl').write_text(content)
    text = (TASKS / 'longmem_words_rolling.yaml').read_text()
    text = text.replace(
        'tests/hosts/evaluation/lm_eval_tasks/words.jsonl', f'{tmp_path}/samples.jsonl'
    )
    (tmp_path / 'task.yaml').write_text(text.replace('longmem_words_rolling', 'unreadable'))
    with pytest.raises(UsageError, match=f'--tasks=unreadable: their data cannot be read .*{said}'):
        evaluate_tasks(trained, ['unreadable'], include_path=str(tmp_path), local=True)


@pytest.mark.parametrize(
    'arguments, message',
    [
        (dict(limit=-3.0), '--limit=-3: must be a number of examples, or a share'),
        (dict(num_fewshot=-1), '--num_fewshot=-1: must be a number of examples, 0 or more'),
        (dict(include_path='nowhere'), '--include_path=nowhere: there is no such folder'),
        (dict(output='nowhere/out.json'), '--output=nowhere/out.json: cannot be written'),
    ],
)
def test_wrong_options_are_refused_before_anything_is_scored(arguments, message):
    with pytest.raises(UsageError, match=message):
        evaluate_tasks(None, ['longmem_words_choice'], local=True, **arguments)


def test_the_harness_finds_the_model_by_its_name(trained, model):
    path = trained.workdir / 'config.json'
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {'mesh': {'data': -1}}))  # all devices there are
    results = simple_evaluate(
        'longmem_jax',
        model_args=f'workdir={trained.workdir}',
        batch_size=8,
        tasks=['longmem_words_rolling'],
        task_manager=task_manager(['longmem_words_rolling'], str(TASKS), local=True),
    )
    lines = (TASKS / 'words.jsonl').read_text().splitlines()
    documents = [json.loads(line)['document'] for line in lines]
    sums = model.loglikelihood_rolling(requests(*((document,) for document in documents)))
    wanted = -np.sum(sums) / np.log(2) / sum(map(len, documents))
    found = results['results']['longmem_words_rolling']['bits_per_byte,none']
    assert found == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    'arguments, message',
    [
        ('', 'nothing: workdir=DIR is needed, or pretrained=FOLDER'),
        ('pretrained=/nowhere/at/all', 'no such file or folder'),
        ('pretrained=/nowhere,memry=infini', 'memry'),
        ('workdir=/nowhere,dtype=float', 'model_args has workdir, dtype'),
        ('workdir=/nowhere', 'no config.json there'),
        ('workdir=/nowhere,batch_size=auto', 'must be a whole number'),
    ],
)
def test_bad_arguments_are_one_clear_error(arguments, message):
    with pytest.raises(UsageError, match=message):
        LongMemLM.create_from_arg_string(arguments, {'device': None})


def test_a_task_that_is_not_known():
    with pytest.raises(UsageError, match=r'nothing is not known; there are 3 tasks \(longmem'):
        task_manager(['nothing'], str(TASKS), local=True)
