"""lm-eval's own backend on the same folders: equal scores, equal texts; skipped without its packages."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers

from configs import host as host_config
from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.devices import sharding
from longmem_jax.experiment import Experiment

torch = pytest.importorskip('torch', reason="needs pip install 'longmem_jax[test-torch]'")
transformers = pytest.importorskip('transformers')
pytest.importorskip('lm_eval')  # the extra [eval]
pytest.importorskip('accelerate')  # which lm-eval's backend of transformers imports

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402

from longmem_jax.hosts.evaluation.lm_eval import LongMemLM  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]
CONTEXT, WRITTEN = 64, 12
CHAT = """{%- if bos_token %}{{ bos_token }}{% endif %}
{%- for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
WORDS = 'alpha beta gamma delta epsilon zeta eta theta iota kappa'.split()
SIZES = dict(vocab_size=300, initializer_range=0.3)
COMMON = SIZES | dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=CONTEXT, tie_word_embeddings=False,
)  # fmt: skip
# (class of the config, its attributes, special tokens, whether the tokenizer writes the begin token)
HOSTS = {
    'llama': (
        'LlamaConfig',
        COMMON | dict(bos_token_id=1, eos_token_id=[2, 3]),
        dict(bos_token='<s>', eos_token='</s>'),
        True,
    ),
    'gpt2': (
        'GPT2Config',
        SIZES | dict(n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, tie_word_embeddings=False,
                     bos_token_id=0, eos_token_id=0),
        dict(bos_token='<|endoftext|>', eos_token='<|endoftext|>', unk_token='<|endoftext|>'),
        False,
    ),
    'qwen2': (
        'Qwen2Config',
        COMMON | dict(bos_token_id=None, eos_token_id=0),
        dict(bos_token=None, eos_token='<|endoftext|>', pad_token='<|endoftext|>'),
        False,
    ),
}  # fmt: skip


def documents(count, least, most, seed):
    random = np.random.default_rng(seed)
    return [' '.join(random.choice(WORDS, random.integers(least, most))) for _ in range(count)]


def save_tokenizer(folder, special, writes_begin):
    names = ['<|endoftext|>', '<s>', '</s>', '<|end|>']
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=names, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(documents(20, 20, 40, 9), trainer)
    template = tokenizers.processors.TemplateProcessing
    made.post_processor = (
        template(single='<s> $A', special_tokens=[('<s>', 1)])
        if writes_begin
        else tokenizers.processors.ByteLevel(trim_offsets=False)
    )
    made.save(str(folder / 'tokenizer.json'))
    settings = dict(tokenizer_class='PreTrainedTokenizerFast', clean_up_tokenization_spaces=False)
    settings |= special | dict(chat_template=CHAT)
    (folder / 'tokenizer_config.json').write_text(json.dumps(settings))


@pytest.fixture(scope='module', params=HOSTS)
def both(request, tmp_path_factory):
    """Their model and ours, of one folder that transformers made."""
    kind, attributes, special, writes_begin = HOSTS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**attributes))
    with torch.no_grad():  # so that greedy texts end now and then
        made.lm_head.weight[:4] *= 2.0
    made.save_pretrained(folder)
    save_tokenizer(folder, special, writes_begin)
    theirs = HFLM(
        pretrained=transformers.AutoModelForCausalLM.from_pretrained(folder).eval(),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        batch_size=4,
        device='cpu',
    )
    config = host_config.get_config(f'path={folder},memory=none,segment=16')
    config.evaluate.num_lanes = 4
    mesh = sharding.make_mesh(config.mesh.to_dict(), jax.devices()[:1])
    run = Experiment(config, Path(tmp_path_factory.mktemp('run')), mesh)
    params, _ = newest_parameters(run, lambda line: None)
    return request.param, theirs, LongMemLM.of_experiment(run, params)


def asked(kind, *arguments):
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


def test_multiple_choice(both):
    """Contexts of all lengths, also beyond the model's, and none."""
    _, theirs, ours = both
    contexts = ['', *documents(12, 3, 12, 1), *documents(3, 50, 70, 2)]
    pairs = [(context, f' {word} {word}') for context in contexts for word in WORDS[:3]]
    pairs += [(f'{contexts[1]} ', 'beta')]
    wanted, found = (
        lm.loglikelihood(asked('loglikelihood', *pairs), True) for lm in (theirs, ours)
    )
    np.testing.assert_allclose([s for s, _ in found], [s for s, _ in wanted], atol=2e-3)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in wanted]


def test_greedy_texts_end_where_theirs_end(both):
    _, theirs, ours = both
    contexts = [*documents(20, 3, 12, 3), *documents(3, 50, 70, 4)]
    settings = dict(until=['\n\n'], max_gen_toks=WRITTEN, do_sample=False)
    requests = [(context, settings) for context in contexts]
    wanted, found = (
        lm.generate_until(asked('generate_until', *requests), True) for lm in (theirs, ours)
    )
    assert found == wanted
    sizes = [len(ours.tokenizer.encode(text.encode())) for text in found]
    assert min(sizes) < WRITTEN - 2, 'no text has ended early, so ends were not tried'


@pytest.mark.parametrize('ended', [True, False])
def test_chats_are_theirs(both, ended):
    """The text of a conversation, a begin token that the template writes once, and the answer."""
    _, theirs, ours = both
    last = dict(role='user' if ended else 'assistant', content=' alpha beta ')
    messages = [dict(role='system', content='gamma'), dict(role='user', content='delta'), last]
    texts = [lm.apply_chat_template(messages, ended) for lm in (theirs, ours)]
    assert texts[0] == texts[1] and ours.chat_template(True) == CHAT
    settings = dict(until=['\n\n'], max_gen_toks=WRITTEN, do_sample=False)
    request = asked('generate_until', (texts[0], settings))
    assert ours.generate_until(request, True) == theirs.generate_until(request, True)


def test_a_folder_is_enough(both):
    _, theirs, ours = both
    folder = theirs.tokenizer.name_or_path
    again = LongMemLM.create_from_arg_string(f'pretrained={folder},segment=16,batch_size=8')
    request = asked('loglikelihood', ('alpha beta', ' gamma'))
    found, wanted = (lm.loglikelihood(request, True)[0][0] for lm in (again, ours))
    assert found == pytest.approx(wanted, rel=1e-5)
    other = LongMemLM.create_from_arg_string(f'pretrained={folder},memory=sinks,segment=16')
    assert 'sinks' in other.likelihood.reader.model.config.attention


def test_rolling(both):
    """Documents below and beyond the context; theirs also score a begin token that is added."""
    name, theirs, ours = both
    requests = asked('loglikelihood_rolling', *((d,) for d in documents(8, 5, 90, 5)))
    found = ours.loglikelihood_rolling(requests, True)
    theirs.add_bos_token = False  # the text itself has none, there is one before it
    wanted = theirs.loglikelihood_rolling(requests, True)
    theirs.add_bos_token = None
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    again = theirs.loglikelihood_rolling(requests, True)
    assert np.allclose(again, wanted) == (name != 'llama')
