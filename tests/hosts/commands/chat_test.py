"""`--mode=generate --chat`: a prompt through a folder's template, and an answer that ends."""

import io
import json
import shutil

import jax
import numpy as np
import pytest
import tokenizers

from longmem_jax.commands import generate, writer
from longmem_jax.data.conventions import of_folder
from longmem_jax.data.load import make_tokenizer
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.hosts.chat import ChatTemplate, load_template
from longmem_jax.hosts.commands.chat import template_of
from longmem_jax.models.parameters import initial_parameters, unbox
from tests.commands.train_test import small_config

MARKS = ['<s>', '<|user|>', '<|assistant|>', '</s>']
TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>' + message['content'] }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A tokenizer's folder with a chat template."""
    folder = tmp_path_factory.mktemp('host')
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(['who', 'are', 'you', '?'])}, '?')
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(MARKS)
    words.save(str(folder / 'tokenizer.json'))
    settings = dict(bos_token='<s>', eos_token={'content': '</s>'}, chat_template=TEMPLATE)
    (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
    return folder


@pytest.fixture
def experiment(folder, tmp_path, monkeypatch):
    pytest.importorskip('jinja2')
    config = small_config('none')
    config.model.vocab_size = 8
    config.data.tokenizer.update(kind='tokenizers', path=str(folder))
    made = Experiment(
        config, tmp_path, sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1])
    )
    params = unbox(jax.jit(lambda: initial_parameters(made.model, jax.random.key(0)))())
    monkeypatch.setattr(Experiment, 'restore_parameters', lambda self: (params, 0))
    return made


def answer(experiment, monkeypatch, prompt, **options):
    """The answer, and all tokens that were read."""
    read = []
    original = writer.Reader.read
    monkeypatch.setattr(
        writer.Reader,
        'read',
        lambda self, tokens: (read.append(tokens), original(self, tokens))[1],
    )
    text = generate.generate(
        experiment,
        prompt,
        dict(length=20) | options,
        template=template_of(experiment),
        out=io.StringIO(),
    )
    return text, np.concatenate(read, axis=1)[0].tolist()


def test_the_prompt_is_written_by_the_template(experiment, monkeypatch):
    names = {name: i for i, name in enumerate(['who', 'are', 'you', '?', *MARKS])}
    _, read = answer(experiment, monkeypatch, 'who are you', length=0)
    wanted = ['<s>', '<|user|>', 'who', 'are', 'you', '<|assistant|>']
    assert read == [names[word] for word in wanted]
    messages = [dict(role='user', content='who'), dict(role='assistant', content='you')]
    _, read = answer(experiment, monkeypatch, json.dumps(messages), length=0)
    wanted = ['<s>', '<|user|>', 'who', '<|assistant|>', 'you', '<|assistant|>']
    assert read == [names[word] for word in wanted]


@pytest.mark.parametrize('beams', [0, 2])
def test_the_answer_ends_and_nothing_after_its_end_is_remembered(
    experiment, monkeypatch, tmp_path, beams
):
    saved = []
    monkeypatch.setattr(
        generate.state_file, 'save', lambda path, state, pending, *rest: saved.append(pending) or 0
    )
    for seed in range(4):
        options = dict(length=40, seed=seed, top_p=1.0, beams=beams)
        generate.generate(
            experiment,
            'who',
            options,
            template=template_of(experiment),
            save_state=str(tmp_path / 's'),
            out=io.StringIO(),
        )
    assert len(saved) == 4
    assert all(7 not in pending[0, :-1].tolist() for pending in saved)


def test_a_message_can_be_left_open(experiment, folder):
    template = load_template(folder, {'bos_token': '<s>'})
    messages = [dict(role='user', content='who'), dict(role='assistant', content=' you are ')]
    assert template.render_open(messages) == '<s><|user|>who<|assistant|> you are '
    strips = ChatTemplate(TEMPLATE.replace("['content']", "['content'] | trim"), 'x', {})
    assert strips.render_open(messages) == '<|user|>who<|assistant|>you are'
    silent = ChatTemplate('x', 'chat_template.jinja', {})
    with pytest.raises(UsageError, match='leaves out the last message'):
        silent.render_open(messages)


def test_folders_that_cannot_chat(experiment, folder, tmp_path, monkeypatch):
    plain = shutil.copytree(folder, tmp_path / 'plain')
    tokenizer = make_tokenizer(experiment.config.data, None)
    assert of_folder(folder, tokenizer).ends == (7,)
    (plain / 'generation_config.json').write_text(json.dumps(dict(eos_token_id=[2, 7])))
    assert of_folder(plain, tokenizer).ends == (2, 7)
    (plain / 'generation_config.json').unlink()
    (plain / 'tokenizer_config.json').write_text(json.dumps(dict(chat_template='x')))
    experiment.config.data.tokenizer.path = str(plain)
    with pytest.raises(UsageError, match='names no token that ends an answer'):
        answer(experiment, monkeypatch, 'who')
    monkeypatch.chdir(folder)  # a path that is empty is not the folder where we are
    for path in (str(plain / 'tokenizer.json'), ''):
        experiment.config.data.tokenizer.path = path
        with pytest.raises(UsageError, match='set the path to that folder, or leave out --chat'):
            answer(experiment, monkeypatch, 'who')
