"""The command: each bad input is one message, exit code 2, no traceback; modes work together."""

import json
import re

import pytest


def run_all(start, commands, folder):
    """(exit code, stdout, stderr) of every command, run in sequence.

    A command begins with its module, unless that is `longmem_jax.main`.
    """
    folder.mkdir()
    answers = []
    for number, arguments in enumerate(commands):
        named = arguments and arguments[0].startswith(('longmem_jax.', 'experiments.'))
        module, *arguments = arguments if named else ['longmem_jax.main', *arguments]
        error = folder / str(number)
        process = start(arguments, module=module, error=error)
        out, _ = process.communicate()
        answers.append((process.returncode, out, error.read_text()))
    return answers


def run(start, folder, *arguments):
    """What one command prints, which must succeed."""
    ((code, out, error),) = run_all(start, [arguments], folder)
    assert code == 0, out + error
    return out


TINY = '--config=configs/quickstart.py:tiny'
PAIRS = '--config=configs/memsizer_wmt16.py:tiny'
CORRIDOR = '--config=configs/corridor.py:tiny'
CLASSES = '--config=configs/bert_superglue.py:tiny'


BAD = [
    ([], '--help lists all flags, --mode=list all configs'),
    (['--config=configs/none.py'], 'there is no file or name configs/none.py'),
    (['--config=configs/quickstart.py:large'], 'allowed are long, memory, tiny'),
    (['--config=configs/quickstart.py:?'], 'the config accepts long, tiny, memory=NAME'),
    ([TINY, '--config.model.d_modl=3'], 'd_model'),
    ([TINY, "--config.model.attention=('local', 'local')"], 'config.model.local is missing'),
    ([TINY, '--config.evaluate.model.transformer_xl.memory_length=256', '--mode=compile'],
     '--topology='),
    (['--config.train.num_steps=3'], '--config= is missing'),
    ([PAIRS, '--mode=build_datastore'], "not for models of the kind 'seq2seq'"),
    ([PAIRS, '--load_state=FILE'],
     "--load_state: not for --mode=train of a model of the kind 'seq2seq'"),
    ([CLASSES, '--mode=generate'], "--mode=generate: not for models of the kind 'classifier'"),
    ([CLASSES, '--mode=evaluate', '--load_state=FILE'],
     "--load_state: not for --mode=evaluate of a model of the kind 'classifier'"),
    (['--config=configs/sorting.py:sticky=smapled,tiny', '--workdir={tmp}'],
     "config.model.infinity_former.sticky = 'smapled': did you mean 'sampled'"),
    ([TINY, '--mode=fly'], 'UsageError: --mode=fly: value should be one of'),
    ([TINY, '--mod=train'], "UsageError: --mod: there is no such flag; did you mean 'mode'? --help"),
    ([TINY, '--batch_size=4'], 'there is --config.evaluate.num_lanes, --config.train.num_lanes'),
    ([TINY, '--mode=play'], "--mode=play: not for models of the kind 'language_model'"),
    ([CORRIDOR, '--mode=generate'], "--mode=generate: not for models of the kind 'agent'"),
    ([CORRIDOR, '--mode=play', '--temperature=0.7', '--workdir={there}'], 'most likely action (0)'),
    ([TINY, '--workdir={there}', '--mode=generate', '--prompt=x', '--output=y'],
     '--output=y: is for --prompts'),
    ([TINY, '--config.generate.beams=100000'], 'config.generate.beams = 100000: must be at most 1,024'),
    ([TINY, '--top_p=3'], 'UsageError: --top_p=3: 3.0 is not a number in the range'),
    ([TINY, '--length=sixty'], 'UsageError: --length=sixty: must be a whole number'),
    ([TINY, '--top_p=most'], 'UsageError: --top_p=most: must be a number'),
    ([TINY, '--top_p=nan'], 'UsageError: --top_p=nan: must be a number'),
    ([TINY, '--config.data.path=there'], "data.source = 'stdlib' reads no files; add --config.data"),
    ([TINY], '--workdir= is missing'),
    ([TINY, '--workdir=/proc/none'], 'cannot be written'),
    (['--config=configs/pg19.py', '--workdir={tmp}'], '--config.data.path=FOLDER'),
    ([TINY, '--workdir={tmp}', '--config.data.source=text', '--config.data.path=/none'],
     'does not exist'),
    ([TINY, '--workdir={tmp}', '--config.model.vocab_size=100'], 'the tokenizer has 257'),
    ([TINY, '--workdir={tmp}', '--mode=generate', '--prompt=x'], 'train first'),
    ([TINY, '--workdir={there}', '--mode=evaluate', '--split=dev'], 'train, validation, test'),
    ([PAIRS, '--mode=floors'], "--mode=floors: not for models of the kind 'seq2seq'"),
    (['--config=configs/instruction.py:tiny', '--workdir={tmp}', '--mode=floors', '--split=train',
      '--config.data.task.train_on_text=True'], '--config.data.task.train_on_text=False'),
    ([TINY, '--workdir={tmp}', '--coordinator=a:1'], 'go together'),
    ([TINY, '--workdir={tmp}', '--process_id=1'], 'go together'),
    ([TINY, "--config.model.attention=('local', 3)"], "('local', 3): names of layers are needed"),
    ([TINY, '--config.generate.top_p=7'], 'config.generate.top_p = 7.0: must lie between 0 and 1'),
    ([TINY, '--workdir={tmp}', '--config.evaluate.model.d_model=32'],
     'in evaluation; only fields without parameters can differ'),
    (['--config=configs/quickstart.py:memory=recurrent,tiny', '--workdir={tmp}',
      '--config.evaluate.model.memory_tokens.num_tokens=4'],
     'memory_tokens/tokens is (8, 64) in training and (4, 64) in evaluation'),
    ([TINY, '--workdir={there}', '--mode=generate', '--save_state=/proc/memory'],
     '--save_state=/proc/memory: cannot be written'),
    ([TINY, 'train'], 'unknown arguments'),
    (['--workdir={tmp}/typo', '--mode=score'], 'typo: no config.json of a run is there. --config= is'),
    ([TINY, '--workdir={tmp}', '--mode=score', '--prompt=x', '--save_state=y'],
     '--save_state with --mode=score'),
    ([TINY, '--workdir={tmp}', '--mode=generate', '--prompts=x', '--prompt=y'],
     '--prompts with --prompt'),
    ([PAIRS, '--mode=score'], "--mode=score: not for models of the kind 'seq2seq'"),
    ([CLASSES, '--mode=inspect'], "the kind 'classifier'; it is for language_model"),
    ([TINY, '--workdir={there}', '--mode=inspect', '--prompt=x', '--prompts=y', '--output=z'],
     '--prompts, --save_state: not with --mode=inspect'),
    (['experiments.speed.bench', TINY, '--repeats=0'], 'UsageError: --repeats=0'),
    (['--config=configs/__init__.py'], 'configs/__init__.py has no function get_config'),
    ([TINY, '--workdir={tmp}', '--config.data.tokenizer.path=words.txt'],
     "config.data.tokenizer.path = 'words.txt': would be ignored"),
    (['--config=configs/copy.py:tiny', '--config.data.tokenizer.kind=words', '--workdir={tmp}'],
     "config.data.tokenizer.kind = 'words': the task 'copy' has its own words"),
    (['longmem_jax.commands.train_tokenizer', '--kind=bpe', '--size=300', '--output=x'],
     'one of --config= and --path='),
]  # fmt: skip

WELL = [['--help'], ['--helpfull'], ['--mode=list'], ['--mode=list', TINY], ['-h'], ['--version']]


@pytest.fixture(scope='module')
def answers(start, tmp_path_factory):
    """(exit code, stdout, stderr) of `BAD`, of its last but one with --debug, and of `WELL`."""
    folder = tmp_path_factory.mktemp('bad')
    for number in range(len(BAD)):
        (folder / f'run{number}').mkdir()
    commands = [
        [argument.format(tmp=folder / f'run{number}', there=folder) for argument in arguments]
        for number, (arguments, _) in enumerate(BAD)
    ]
    commands += [[*commands[-2], '--debug'], *WELL]
    return run_all(start, commands, folder / 'answers')


@pytest.mark.parametrize('number', range(len(BAD)), ids=lambda n: ' '.join(BAD[n][0][-1:]))
def test_bad_input_is_one_message(answers, number):
    code, _, error = answers[number]
    assert code == 2, error
    assert BAD[number][1] in error
    assert 'Traceback' not in error
    lines = error.strip().splitlines()
    listed = 'problem' in lines[0] or 'one of these ways:' in lines[0]
    assert len(lines) == 1 or listed, f'one message is one line: {error}'


def test_debug_shows_the_traceback(answers):
    code, _, error = answers[len(BAD)]
    assert code == 2 and 'Traceback' in error and BAD[-2][1] in error


@pytest.fixture(scope='module')
def trained(start, tmp_path_factory):
    """A trained `:tiny`, with the output that a new user sees."""
    workdir = tmp_path_factory.mktemp('trained')
    out = run(start, workdir / 'errors', TINY, f'--workdir={workdir}', '--profile')
    return workdir, out


@pytest.mark.slow
def test_training_says_everything(trained):
    workdir, out = trained
    for part in ('Compiling', 'step 20/20', 'tokens/s', 'left', 'Results', 'test, memory reset',
                 'gain by memory', 'memory transformer_xl 64', 'Sample:', 'checkpoint:',
                 'TensorBoard events:', 'learning curve:', 'Profile of steps'):  # fmt: skip
        assert part in out, part
    assert list((workdir / 'profile').rglob('*.xplane.pb'))


@pytest.mark.slow
def test_results_are_evaluated_again_and_floors_shown_beside_them(trained, start, tmp_path):
    workdir = f'--workdir={trained[0]}'
    modes = ['--mode=floors'], ['--mode=evaluate'], ['--mode=evaluate', '--split=validation']
    # The folder is enough: the run's own configuration is read.
    done = run_all(start, [[workdir, *mode] for mode in modes], tmp_path / 'done')
    assert [code for code, _, _ in done] == [0, 0, 0], done
    floors, test, validation = (out for _, out, _ in done)
    assert 'unigram' in floors and '5-gram' in floors
    assert 'counted on the first 5,120 tokens' in floors
    scored = re.search('the first [0-9,]+ tokens .* of test scored', floors)[0]
    assert 'gain by memory' in test and '5-gram' in test and test.count(scored) == 3
    assert '5-gram' not in validation and 'is for other settings' in validation
    assert '--mode=floors --split=validation' in validation
    assert 'validation, memory reset' in validation and 'tokens' in validation


@pytest.mark.slow
def test_every_mode_that_reads_texts_says_what_is_none(start, tmp_path):
    (tmp_path / 'text').write_bytes('caf\u00e9 '.encode('latin-1') * 9000)
    settings = ['--config.data.source=text', f'--config.data.path={tmp_path / "text"}']
    out = run(
        start, tmp_path / 'out', TINY, f'--workdir={tmp_path / "run"}', '--mode=floors', *settings
    )
    assert 'is not UTF-8' in out and 'convert it to UTF-8' in out and 'unigram' in out


@pytest.mark.slow
def test_generation_reads_a_saved_memory_and_goes_on(trained, start, tmp_path):
    """Text read once, saved, loaded elsewhere: the same continuation as reading it all."""
    common = [f'--workdir={trained[0]}', '--mode=generate', '--top_p=1', '--seed=3']
    text = 'import os\n\ndef walk(path):\n    """All files."""\n' * 4
    (tmp_path / 'text').write_text(text)
    prompt, load = f'--prompt=@{tmp_path / "text"}', f'--load_state={tmp_path / "memory"}'
    commands = [
        [prompt, '--length=0', f'--save_state={tmp_path / "memory"}'],
        [prompt, '--length=40'],
        ['--prompt=', '--length=40', load],
        ['--prompt=', '--length=40'],
        [load, '--config.evaluate.segment_length=16'],
        [f'--load_state={tmp_path / "text"}'],
    ]
    done = run_all(start, [[*common, *command] for command in commands], tmp_path / 'done')
    assert [code for code, _, _ in done] == [0, 0, 0, 0, 2, 2], done
    _, (_, whole, _), (_, loaded, _), (_, other, _), (*_, unlike), (*_, unread) = done
    assert loaded == whole and len(whole) > 10
    assert other != whole
    assert 'written by another model: segment_length: 32 there, 16 here' in unlike
    assert 'not a whole safetensors file' in unread


@pytest.mark.slow
def test_bench_prints_json(start, tmp_path):
    command = ['experiments.speed.bench', TINY, '--repeats=2', '--config.mesh.data=1']
    out = run(start, tmp_path / 'errors', *command)
    report = json.loads(out)
    for part in ('train', 'evaluation', 'generation'):
        assert report[part]['ms_min'] <= report[part]['ms_median'] <= report[part]['ms_max']
        assert report[part]['tokens_per_s'] > 0 and report[part]['compile_s'] > 0
    assert report['train']['state_bytes'] == 4 * (2 * (64 * 64 * 4 + 4))
    # Two per parameter and token for products, something for attention; training has two more passes.
    flops = report['evaluation']['flops_per_token']
    assert 2 < flops / report['train']['parameters'] < 5
    assert 2 < report['train']['flops_per_device'] / report['train']['tokens_per_step'] / flops < 4
    assert report['peak_memory']['host_bytes'] > 1e8


@pytest.mark.slow
def test_training_a_tokenizer_is_one_command(start, tmp_path):
    (tmp_path / 'texts/train').mkdir(parents=True)
    (tmp_path / 'texts/train/0.txt').write_text('alpha beta gamma delta ' * 300)
    data = ['--config.data.source=text', f'--config.data.path={tmp_path / "texts"}']
    command = [TINY, *data, '--kind=bpe', '--size=270', f'--output={tmp_path / "bpe.json"}']
    run(start, tmp_path / 'errors', 'longmem_jax.commands.train_tokenizer', *command)
    assert (tmp_path / 'bpe.json').stat().st_size > 1000


def test_help_and_lists_end_well(answers):
    done = answers[-len(WELL) :]
    assert [code for code, _, _ in done] == [0] * len(WELL), done
    helped, whole, listed, fields, short, version = (out for _, out, _ in done)
    assert short == helped and re.fullmatch(r'longmem_jax \d\S+\n', version)
    assert '--config:' in helped and '--workdir:' in helped and '--config:' in whole
    assert 'quickstart: A byte-level' in listed and 'infini: ' in listed
    assert 'train.num_steps = 20 ' in fields and 'infini_pg19' not in fields


@pytest.mark.slow
def test_a_text_is_scored_by_the_folder_of_a_run(trained, start, tmp_path):
    output = tmp_path / 'scored.jsonl'
    arguments = [
        f'--workdir={trained[0]}',
        '--mode=score',
        '--prompt=import os',
        f'--output={output}',
    ]
    ((code, _, said),) = run_all(start, [arguments], tmp_path / 'done')
    assert code == 0 and 'step 20: 9 tokens, 9 bytes: ' in said, said
    rows = map(json.loads, output.read_text().splitlines())
    assert ''.join(row['text'] for row in rows) == 'import os'
