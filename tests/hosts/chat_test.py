"""Chat templates: what they may use, what they print, and what hostile ones cannot do."""

import importlib.util
import json
import re
from types import SimpleNamespace

import pytest

from longmem_jax.data.conventions import special_of
from longmem_jax.errors import UsageError
from longmem_jax.hosts import chat, template_process
from longmem_jax.hosts.commands import chat as commands_chat
from longmem_jax.hosts.template_process import Job

MESSAGES = [
    {'role': 'system', 'content': 'Be brief.'},
    {'role': 'user', 'content': 'Who "is" Ada?'},
]
LIKE_CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


@pytest.fixture
def here(monkeypatch):
    """Templates run in this process, which is faster."""
    monkeypatch.setattr(chat, 'run', template_process.answer)


def render(
    source, messages=MESSAGES, special=(('bos_token', '<s>'), ('eos_token', '</s>')), **options
):
    pytest.importorskip('jinja2')
    return chat.ChatTemplate(source, 'FILE', dict(special)).render(messages, **options)


def test_a_common_template():
    text = '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho "is" Ada?<|im_end|>\n'
    assert render(LIKE_CHATML) == text + '<|im_start|>assistant\n'
    assert render(LIKE_CHATML, add_generation_prompt=False) == text


@pytest.mark.parametrize(
    'source, wanted',
    [
        ('{{ bos_token }}{{ messages[1].content }}{{ eos_token }}', '<s>Who "is" Ada?</s>'),
        ('{{ messages[1] | tojson }}', '{"role": "user", "content": "Who \\"is\\" Ada?"}'),
        ('{{ "\u00e9<" | tojson }}', '"\u00e9<"'),
        ('{{ messages | tojson(indent=1) | length > 20 }}', 'True'),
        ('{% if tools is not none %}tools{% endif %}{{ pad_token is defined }}', 'False'),
        ('{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ loop.length }}{% endfor %}',
         '2'),
        ('{% for m in messages %}{% generation %}{{ m.role }} {% endgeneration %}{% endfor %}',
         'system user '),
        ('{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}'
         '{{ ns.n }}', '2'),
        ('{% for i in range(3) %}{{ loop.revindex }}{% endfor %}', '321'),
        ('{% for name, text in messages[0].items() %}{{ name }} {% endfor %}', 'role content '),
        ('{% for m in messages | selectattr("role", "equalto", "user") %}{{ m.role }}{% endfor %}',
         'user'),
        ('{{ "a" * 3 + "b" }}', 'aaab'),
        ('{{ 1 ~ "x" ~ none }}{{ 7 % 4 }}{{ "aa".replace("a", "b") }}', '1xNone3bb'),
        ('{{ messages | map(attribute="role") | join(",") }}', 'system,user'),
        ('{{ "-".join(["a", "b"]) }}', 'a-b'),
        ('{{ messages | join("+", attribute="role") }}', 'system+user'),
        ('{{ "a b" | replace(" ", "_") | indent(2, true) }}{{ [1, 2] | sum }}', '  a_b3'),
        ('{% for a in range(3) %}{% for b in range(a) %}{{ b }}{% endfor %}{% endfor %}', '001'),
    ],
)  # fmt: skip
@pytest.mark.usefixtures('here')
def test_what_templates_use(source, wanted):
    assert render(source) == wanted


def test_the_date_of_today():
    assert re.fullmatch(r'\d\d \w{3} \d{4}', render("{{ strftime_now('%d %b %Y') }}"))


HOSTILE = [
    ("{{ ''.__class__.__mro__[1].__subclasses__() }}", 'unsafe|undefined'),
    ("{{ messages.__class__.__base__ }}{{ ().__class__.__bases__[0] }}", 'unsafe|undefined'),
    ("{{ cycler.__init__.__globals__.os.system('true') }}", 'unsafe|undefined'),
    ("{{ lipsum.__globals__['os'].popen('id').read() }}", 'unsafe|undefined'),
    ("{{ raise_exception.__globals__ }}{{ strftime_now.__code__.co_code }}", 'unsafe|undefined'),
    ("{{ self.__init__.__globals__ }}{{ self._TemplateReference__context }}", 'unsafe|undefined'),
    ("{{ '{0.__class__.__mro__}'.format('') }}", 'unsafe|undefined'),
    ("{{ messages | map(attribute='__class__') | list }}", ''),
    ("{% include '/etc/passwd' %}", 'loader'),
    ("{% import 'os' as os %}", 'loader'),
    ("{% extends '/etc/passwd' %}", 'loader'),
    ('{% do messages.append(1) %}', "unknown tag 'do'"),
    ('{{ messages.append(1) }}', 'unsafe|not safely callable'),
    ('{{ messages[0].update({"role": "x"}) }}', 'unsafe|not safely callable'),
    ('{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}', 'recursion'),
    ('{{ range(999999999) | list }}', 'Range too big'),
    ('{% for m in messages %}', 'not a chat template'),
    ('{{ 1 / 0 }}', 'division by zero'),
    ('{{ nothing.at.all }}', 'undefined'),
    ('{{ messages[0].content() }}', 'not callable'),
    ("{{ raise_exception('Only the user may speak.') }}", 'refuses .*Only the user may speak'),
]  # fmt: skip


@pytest.mark.parametrize('source, message', HOSTILE, ids=[source[:40] for source, _ in HOSTILE])
@pytest.mark.usefixtures('here')
def test_hostile_templates_end_in_one_line(source, message):
    try:
        text = render(source)
    except UsageError as error:
        assert message and re.search(message, str(error)), error
        assert str(error).startswith('FILE') and '\n' not in str(error)
    else:
        # What the sandbox hides prints as nothing.
        assert 'class' not in text and 'module' not in text and len(text) < 30, text


def test_modules_of_the_current_folder_are_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ('json', 'jinja2', 'longmem_jax'):
        (tmp_path / f'{name}.py').write_text("raise SystemExit('of this folder')")
    assert chat.run(Job('{{ 1 }}', {})) == {'text': '1'}


def test_a_text_has_an_end():
    source = '{% for a in range(9) %}{{ bos_token }}{% endfor %}'
    job = Job(source, {'bos_token': '<s>'}, characters=27)
    assert template_process.answer(job) == {'text': '<s>' * 9}
    problem = template_process.answer(job._replace(characters=26))['problem']
    assert 'more than 26 characters' in problem


@pytest.mark.parametrize(
    'source',
    [
        '{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}',
        '{{ ("x" * 999) * 999999999 }}',
        '{{ 9 ** (9 ** 9) }}',
    ],
    ids=['time', 'memory', 'numbers'],
)
def test_time_and_memory_have_an_end(source):
    """A template of a stranger's folder would stop the machine otherwise."""
    pytest.importorskip('jinja2')
    problem = chat.run(Job(source, {}, seconds=1))['problem']
    assert re.search('more than 1 seconds or 1,024 MiB|MemoryError', problem), problem


def write(folder, **settings):
    (folder / 'tokenizer_config.json').write_text(json.dumps(settings))


@pytest.mark.usefixtures('here')
def test_the_file_comes_before_the_entry(tmp_path):
    pytest.importorskip('jinja2')
    write(
        tmp_path, bos_token={'content': '<s>', 'lstrip': False}, eos_token=None, chat_template='B'
    )
    assert chat.load_template(tmp_path, special_of(tmp_path)).render(MESSAGES) == 'B'
    (tmp_path / 'chat_template.jinja').write_text('A{{ bos_token }}{{ eos_token is defined }}')
    assert chat.load_template(tmp_path, special_of(tmp_path)).render(MESSAGES) == 'A<s>False'
    (tmp_path / 'chat_template.jinja').unlink()
    write(
        tmp_path,
        chat_template=[dict(name='tool_use', template='T'), dict(name='default', template='D')],
    )
    assert chat.load_template(tmp_path, special_of(tmp_path)).render(MESSAGES) == 'D'


def test_a_run_of_bytes_has_no_template():
    tokenizer = SimpleNamespace(kind='bytes', path='')
    config = SimpleNamespace(data=SimpleNamespace(tokenizer=tokenizer))
    with pytest.raises(UsageError, match='this run reads bytes .* leave out --chat'):
        commands_chat.template_of(SimpleNamespace(config=config))


@pytest.mark.usefixtures('here')
def test_folders_without_one_or_with_a_broken_one(tmp_path):
    pytest.importorskip('jinja2')
    with pytest.raises(UsageError, match='has no chat template.*leave out --chat'):
        chat.load_template(tmp_path, special_of(tmp_path))
    write(tmp_path, chat_template=7)
    with pytest.raises(UsageError, match='must be text'):
        chat.load_template(tmp_path, special_of(tmp_path))
    for broken in ('{', '[1]', '[' * 100_000):
        (tmp_path / 'tokenizer_config.json').write_text(broken)
        with pytest.raises(UsageError, match=r'tokenizer_config.json: (not JSON|must be)'):
            chat.load_template(tmp_path, special_of(tmp_path))
    write(tmp_path)
    (tmp_path / 'chat_template.jinja').write_bytes(b'\xff\xfe{{')
    with pytest.raises(UsageError, match=r'chat_template.jinja: cannot be read'):
        chat.load_template(tmp_path, special_of(tmp_path))


def test_without_jinja_there_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'longmem_jax\[chat\]'"):
        chat.ChatTemplate('', 'FILE', {})


def test_prompts_are_messages():
    assert chat.read_messages('Hello') == [{'role': 'user', 'content': 'Hello'}]
    assert chat.read_messages('[sic] hello') == [{'role': 'user', 'content': '[sic] hello'}]
    assert chat.read_messages(json.dumps(MESSAGES)) == MESSAGES
    with pytest.raises(UsageError, match='message 0 needs the texts "role" and "content"'):
        chat.read_messages('[{"role": "user"}]')
