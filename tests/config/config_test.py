"""Every config builds and can run, and every problem is one clear line."""

import dataclasses
import importlib
import importlib.util
import re
from pathlib import Path

import flax.linen as nn
import numpy as np
import pytest

from longmem_jax.config import checks
from longmem_jax.config.base import base, stack
from longmem_jax.config.files import configure
from longmem_jax.config.recipes import given, recipes, scale_of, section, use
from longmem_jax.config.sections import sections
from longmem_jax.errors import UsageError
from longmem_jax.hosts.grafting import grafts
from longmem_jax.memory.checks import layer_problems
from longmem_jax.memory.registry import LAYERS, used
from tests.config.sizes import num_parameters

FILES = sorted((Path(__file__).parents[2] / 'configs').glob('[a-z]*.py'))


QUICKSTART = next(path for path in FILES if path.stem == 'quickstart')
SCALE = scale_of(base())


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert f'--config=configs/{path.name}' in module.__doc__
    return module


def get_config(path, argument=''):
    return load(path).get_config(argument)


def test_memories_stand_in_the_order_of_the_registry():
    names = [name for entry in LAYERS.values() for name in entry.recipe.by_name]
    assert list(recipes()) == list(dict.fromkeys(names))


@pytest.mark.parametrize('argument', ['', 'tiny'])
@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_config_is_runnable(path, argument):
    config = get_config(path, argument)
    assert checks.find_problems(config, num_devices=4 if not argument else 1) == []
    assert set(base()) <= set(config) <= {*base(), *sections()}


# The model of evaluation differs by lengths only, and its problems are among those above.
@pytest.mark.parametrize('argument', [pytest.param('', marks=pytest.mark.slow), 'tiny'])
@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_the_model_of_a_config_can_be_made(path, argument):
    assert num_parameters(get_config(path, argument)) > 10_000


def test_unknown_variant_lists_the_known():
    with pytest.raises(UsageError, match="did you mean 'tiny'"):
        get_config(FILES[0], 'tinny')


def change(config, path, value):
    *sections, name = path.split('.')
    for part in sections:
        config = config[part]
    with config.unlocked(), config.ignore_type():
        config[name] = value


@pytest.mark.parametrize(
    'path, value, message',
    [
        ('model.attention', ('transformer_lx',) * 2, "did you mean 'transformer_xl'"),
        ('model.attention', ('transformer_xl',), 'one name per layer is needed, 2 in all'),
        ('model.feed_forward', ('dense', 'sparse'), 'allowed are dense'),
        ('model.num_heads', 3, 'must be a multiple of config.mesh.tensor = 2'),
        ('model.vocab_size', 257, 'vocabulary may be larger'),
        ('model.norm', 'batchnorm', 'layernorm, rmsnorm'),
        ('model.position', 'absolute', 'none, sinusoidal, learned'),
        ('model.num_positions', 512, "position = 'none' has no table"),
        ('model.num_kv_heads', 3, 'or a divisor of num_heads = 4'),
        ('model.num_kv_heads', -1, 'num_kv_heads = -1: must be 0'),
        ('model.attention_bias', 'qvk', "did you mean 'qkv'"),
        ('model.norm_epsilon', 0.0, 'norm_epsilon = 0.0: must be above 0'),
        ('model.dropout', 1.0, 'must lie between 0 and 1, excluding 1'),
        ('model.dtype', 'float16', 'bfloat16'),
        ('model.cutoffs', (100, 50), 'must rise'),
        ('model.cutoffs', ('a', 'b'), 'must be a tuple of ints'),
        ('model.tie_projections', (), '1 booleans are needed'),
        ('model.transformer_xl.memory_length', -4, 'must be at least 0'),
        ('model.transformer_xl.memory_length', 'long', "must be an int, got 'long'"),
        ('model.transformer_xl.position', 'rotery', "did you mean 'rotary'"),
        ('model.transformer_xl.memory_lenght', 5, "did you mean 'memory_length'"),
        ('model.dense.activation', 'tanh', 'relu, gelu, gelu_exact, swiglu, geglu'),
        ('train.num_lanes', 3, 'must be a multiple of 4'),
        ('train.segment_length', 0, 'must be above 0'),
        ('data.add_bos', 'yes', "config.data.add_bos = 'yes': "),
        ('data.name', 'pg19', "data.source = 'text' reads no data set of a hub; add --config.data"),
        ('train.evaluate_every', -1, 'evaluate_every = -1: must be at least 0'),
        ('train.log_every', -1, 'log_every = -1: must be at least 0'),
        ('checkpoint.every', -1, 'every = -1: must be at least 0'),
        ('mesh.data', 3, 'the product must be 8'),
        ('mesh.data', -2, 'the product must be 8'),
        ('model.num_layers', 10**9, 'num_layers = 1000000000: must be at most 4,096'),
        ('model.d_model', 10**9, 'd_model = 1000000000: must be at most'),
        ('model.vocab_size', 10**12, 'vocab_size = 1000000000000: must be at most'),
        ('train.segment_length', 10**9, 'segment_length = 1000000000: must be at most'),
        ('train.seed', -1, 'train.seed = -1: must lie between 0 and'),
        ('train.seed', 2**63, 'must lie between 0 and 4294967295'),
        ('train.num_steps', 2**31, 'num_steps = 2147483648: must be at most 2,147,483,647'),
        ('evaluate.num_lanes', 2**40, 'evaluate.num_lanes = 1099511627776: must be at most'),
        ('data.seed', -1, 'data.seed = -1: must lie between 0 and'),
        ('generate.seed', 2**32, 'must lie between 0 and 4294967295'),
        ('optimizer.clip_norm', -1.0, 'clip_norm = -1.0: must be at least 0'),
        ('optimizer.warmup_steps', -1, 'warmup_steps = -1: must be at least 0'),
        ('optimizer.b2', 1.5, 'b2 = 1.5: must be at least 0 and below 1'),
        ('optimizer.final_fraction', -1.0, 'must lie between 0 and 1'),
        ('train.z_loss', -1.0, 'z_loss = -1.0: must be at least 0'),
        ('train.max_bad_steps', -1, 'max_bad_steps = -1: must be at least 0'),
        ('evaluate.max_test_segments', -1, 'max_test_segments = -1: must be at least 0'),
        ('evaluate.context', 4096, 'the tokens of a window; set a longer window'),
        ('data.source', 'state_tracking', 'give all fields at once: --config.data.task='),
        ('data.source', 'babilong', 'give all fields at once: --config.data.task='),
        ('data.tokenizer.size', 500, "would be ignored; 'bytes' has 256"),
        ('model.residual_dropout', 2.0, 'excluding 1, or be -1'),
        ('model.transformer_xl.memory_length', 2**31, 'must be at most 2,147,483,647'),
    ],
)
def test_problems_say_what_is_allowed(path, value, message):
    config = base()
    config.model.vocab_size = 264
    config.mesh = dict(data=2, fsdp=2, tensor=2)
    assert checks.find_problems(config, 8) == []
    change(config, path, value)
    with pytest.raises(UsageError, match=message):
        checks.require_runnable(config, 8)


def test_examples_of_layers_are_short():
    config = base()
    config.model.num_layers, config.model.attention = 4000, ('local', 'full')
    problem = next(f for f in checks.find_problems(config, 1) if 'one name per layer' in f)
    example = '--config.model.attention=local,full,local,full --config.model.num_layers=4'
    assert problem.endswith(f'set both, such as {example}')


def test_segments_without_tokens_are_a_problem_of_every_memory():
    for name in recipes():
        config = get_config(QUICKSTART, f'tiny,memory={name}')
        config.train.segment_length = config.evaluate.segment_length = 0
        found = checks.find_problems(config, 1)
        assert any('segment_length = 0' in problem for problem in found), name


def test_zero_steps_between_things_mean_only_at_the_end():
    config = base()
    config.train.evaluate_every = config.train.log_every = 0
    assert checks.find_problems(config, 1) == []
    assert config.checkpoint.every == 1000, 'a run without evaluations must be saved all the same'
    config.checkpoint.every = 0
    assert checks.find_problems(config, 1) == [] and config.checkpoint.every == 0


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(rotary_share=0.0), 'rotary_share = 0.0: must lie between 0 and 1, excluding 0'),
        (dict(rotary_share=1.5), 'rotary_share = 1.5: must lie between 0 and 1'),
        (dict(rotary_share=0.1), 'of head_dim = 32 it rotates 3 dimensions'),
        (dict(rotary_base=0.0), 'rotary_base = 0.0: must be above 1'),
        (dict(head_dim=33, rotary_share=1.0), 'head_dim = 33: rotary needs an even number'),
        (dict(position='learned', num_positions=64), 'at least the segment length 128'),
        (dict(attention=('memsizer',) * 2, num_kv_heads=2), 'num_kv_heads = 0, not 2'),
    ],
)
def test_settings_of_attention_are_checked(changes, message):
    config = base()
    config.model.transformer_xl.position = 'rotary'
    config.model.memsizer = section('memsizer', num_slots=4, chunk=3)
    config.model.update(dict(rotary_share=0.25, num_kv_heads=2))
    assert checks.find_problems(config, 1) == []
    config.model.update(changes)
    problems = checks.find_problems(config, 1)
    assert [problem for problem in problems if re.search(message, problem)], problems
    assert len([problem for problem in problems if not problem.startswith('in evaluation')]) == 1, (
        problems
    )


def test_learned_positions_of_their_own_length_allow_other_segments():
    config = base()
    config.model.position, config.evaluate.segment_length = 'learned', 256
    config.model.num_positions = 100
    assert 'take shorter segments (of a pretrained' in '\n'.join(checks.find_problems(config, 1))
    config.model.num_positions = 0
    assert 'config.model.num_positions' in '\n'.join(checks.find_problems(config, 1))
    config.model.num_positions = 1024
    assert checks.find_problems(config, 1) == []


def test_all_problems_come_at_once():
    config = base()
    config.model.attention = ('a', 'b')
    config.model.dropout = -1.0
    config.train.num_steps = 0
    with pytest.raises(UsageError, match='4 problems') as caught:
        checks.require_runnable(config, 1)
    assert 'num_steps' in str(caught.value) and 'dropout' in str(caught.value)


def test_steps_too_few_for_one_update():
    config = configure('quickstart:tiny')
    config.optimizer.accumulate_steps, config.train.num_steps = 3, 2
    (problem,) = checks.find_problems(config, 1)
    assert problem.endswith('needs as many steps, and config.train.num_steps = 2 would make none')
    config.train.num_steps = 3
    assert not checks.find_problems(config, 1)


def test_settings_that_would_be_ignored_are_problems():
    config = base()
    config.optimizer.weight_decay, config.optimizer.momentum = 0.1, 0.9
    with pytest.raises(UsageError, match="'adam' has none; use 'adamw'(.|\n)*belongs to 'sgd'"):
        checks.require_runnable(config, 1)


def test_overrides_of_evaluation_are_checked():
    config = base()
    config.evaluate.model = dict(transformer_xl=dict(memory_length=9))
    assert checks.evaluation_model(config).transformer_xl.memory_length == 9
    assert config.model.transformer_xl.memory_length == 128
    config.evaluate.model = dict(transformer_xl=dict(memory=9))
    with pytest.raises(UsageError, match='config.evaluate.model.transformer_xl'):
        checks.evaluation_model(config)
    config.evaluate.model = dict(infini=dict(rule='delta', gate_init=0.0))
    with pytest.raises(UsageError, match="config.evaluate.model.infini: .* no 'infini'") as caught:
        checks.evaluation_model(config)
    assert len(str(caught.value).splitlines()) == 1, 'name the field, do not print the section'


def with_memory(memory, **changes):
    """A runnable configuration with one memory in all layers, for segments of 128."""
    config = base()
    told = dict(
        expire_span=given(
            max_span=512, ramp=32, position_length=128, capacity=672, initial_share=0.2
        ),
        adaptive_span=given(max_span=512, ramp=32),
        compressive=given('compressive_sliding', memory_length=256, compressed_length=64),
    )
    use(config, memory, told[memory])
    assert checks.find_problems(config, 1) == []
    with config.unlocked(), config.ignore_type():
        config.model[memory].update(changes)
    return config


@pytest.mark.parametrize(
    'memory, changes, message',
    [
        ('expire_span', dict(capacity=100, max_span=50, position_length=60), 'the segment length'),
        ('expire_span', dict(ramp=0), 'ramp = 0: must be at least 1'),
        ('expire_span', dict(max_span=64), 'initial_share = 0.2: .* less than a segment of 128'),
        ('expire_span', dict(max_span=4000), 'capacity = 672: entries are kept for .* = 832'),
        ('expire_span', dict(position_length=672), 'position_length = 672: must be below'),
        ('expire_span', dict(initial_share=0.0), 'must lie between 0 and 1'),
        ('expire_span', dict(pre_div=0.0), 'pre_div = 0.0: must be above 0'),
        ('expire_span', dict(start='full'), 'allowed are empty, zeros'),
        ('adaptive_span', dict(ramp=0), 'ramp = 0: must be at least 1'),
        ('adaptive_span', dict(per='token'), 'allowed are head, layer, none'),
        ('adaptive_span', dict(initial_share=1.5), 'initial_share = 1.5'),
        ('compressive', dict(rate=3), 'rate = 3: must divide the segment length 128'),
        ('compressive', dict(rate=1), 'rate = 1: must be at least 2'),
        ('compressive', dict(memory_length=130), 'must divide the memory length 130'),
        ('compressive', dict(compression='sum'), 'convolution, mean, max, most_used'),
        ('compressive', dict(compression='convolution'), "needs compression 'mean' or 'max'"),
        ('compressive', dict(reading='segment', start='zeros'), "start = 'zeros': is for reading"),
    ],
)
def test_bad_memories_are_one_clear_error(memory, changes, message):
    problems = [
        problem
        for problem in checks.find_problems(with_memory(memory, **changes), 1)
        if not problem.startswith('in evaluation')
    ]
    assert any(re.search(message, problem) for problem in problems), problems
    if 'rate' not in changes:
        assert len(problems) == 1, problems


def test_a_convolution_that_learns_from_nothing_is_a_problem():
    config = with_memory('compressive', reading='segment', compression='convolution')
    assert any("reconstruction = 'none'" in problem for problem in checks.find_problems(config, 1))


def test_losses_and_their_weights_belong_together():
    config = with_memory('expire_span')
    del config.train.loss_weights['expire_span']
    config.train.loss_weights['expired'] = 1.0
    problems = '\n'.join(checks.find_problems(config, 1))
    assert 'loss_weights.expire_span is missing' in problems
    assert "did you mean 'expire_span'" in problems


# Their memory is not the attention of a decoder.
ENCODERS = ('bert_superglue', 'lifelong_classification', 'lifelong_qa', 'lifelong_relations')
# Configs that put memories into pretrained decoders, even without `path=`.
HOSTS = [path.stem for path in FILES if 'graft' in path.read_text() or '_gpt2' in path.read_text()]
HOSTS.remove('superglue')


@pytest.mark.parametrize('share', [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_every_memory_goes_into_every_config(path, share):
    """At both sizes, and wherever `memory=` is typed; deviations forced by a shape are noted.

    A third of the memories, another one in every config, is share 0.
    """
    module, place = load(path), FILES.index(path)
    chosen = [name for at, name in enumerate(recipes()) if bool((at + place) % 3) == bool(share)]
    for number, memory in enumerate(chosen):
        if path.stem in ENCODERS:
            with pytest.raises(UsageError, match='allowed are length, me'):
                module.get_config(f'memory={memory}')
            continue
        if path.stem in HOSTS and memory not in grafts():
            with pytest.raises(UsageError, match='cannot be put into a host'):
                module.get_config(f'memory={memory}')
            continue
        for argument in (f'memory={memory}', f'tiny,memory={memory}'):
            config = module.get_config(argument)
            found = checks.find_problems(config, 1 if 'tiny' in argument else 4)
            assert found == [], f'{path.stem}:{argument}: mend the recipe of {memory}\n{found}'
            layers = used(config.model)
            own = next(iter(recipes()[memory](SCALE).sections))
            # Where a paper has a version of its own, a note says so.
            other = [note for note in config.notes if note.startswith(f'{memory}: the ')]
            assert own in layers or other, f'{path.stem}:{argument}: {own} is not in {layers}'
            assert set(base()) <= set(config) <= {*base(), *sections()}
        if number:  # the order is the config's matter, and one memory shows it
            continue
        typed = module.get_config(f'memory={memory},tiny')
        assert typed.to_dict() == config.to_dict(), 'variants apply as declared, not as typed'


def shapes(number):
    """Random shapes of models: heads that divide no width, odd widths, one layer, short segments."""
    random = np.random.default_rng(0)
    draw = lambda *values: int(random.choice(values))  # noqa: E731
    for _ in range(number):
        heads, head_dim = draw(1, 3, 5, 6, 7), draw(3, 8, 12, 41)
        segment = draw(2, 6, 32, 100, 512)
        yield dict(
            num_heads=heads,
            head_dim=head_dim,
            d_model=draw(heads * head_dim, 35, 151, 2048, random.integers(1, 300)),
            num_layers=draw(1, 2, 5),
            segment_length=segment,
            evaluated=draw(segment, 2 * segment, 16 * segment, 1),
        )


@pytest.mark.parametrize('memory', recipes())
def test_every_memory_takes_every_shape(memory):
    for shape in shapes(25):
        config = get_config(QUICKSTART)
        model = config.model
        for field in ('num_heads', 'head_dim', 'd_model'):
            model[field] = shape[field]
        model.d_embed = shape['d_model']
        stack(model, shape['num_layers'], 'local', 'dense')
        config.train.segment_length = shape['segment_length']
        config.evaluate.segment_length = shape['evaluated']
        use(config, memory)
        found = checks.find_problems(config, 1)
        # A slot of several vectors cannot end with a segment of one.
        found = [
            problem for problem in found if not problem.endswith('divide the segment length 1')
        ]
        assert found == [], f'{shape}: mend the recipe of {memory}\n{found}'


def test_what_a_shape_forbids_is_noted_in_the_config():
    wikitext = next(path for path in FILES if path.stem == 'wikitext103')
    notes = {name: get_config(wikitext, f'memory={name}').notes for name in recipes()}
    assert 'head_dim = 41 is odd' in notes['infini'][0] and "'t5'" in notes['infini'][0]
    assert 'rate = 2' in notes['compressive'][0]
    assert 'blocks of 8192' in notes['memorizing'][0]
    assert notes['transformer_xl'] == ()
    odd = get_config(wikitext, '')
    odd.model.num_heads, odd.model.head_dim = 6, 64
    odd.model.d_model = odd.model.d_embed = 2048
    use(odd, 'memformer')
    assert odd.model.memformer.slot_heads == 4 and 'slot_heads = 4' in str(odd.notes)
    assert get_config(wikitext, 'memory=infini').model.infini.position == 't5'


def test_a_name_that_is_no_memory_gets_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'infini'"):
        get_config(QUICKSTART, 'memory=infni')
    with pytest.raises(UsageError, match='a layer; its memories are ttt_linear, ttt_mlp'):
        get_config(QUICKSTART, 'memory=test_time')


@pytest.mark.parametrize(
    'argument, message',
    [
        ('tiny,tiny', "names 'tiny' twice"),
        ('memory=infini,memory=local', "names 'memory' twice"),
        ('memory', 'a value is needed, such as memory=infini'),
        ('tiny=1', 'takes no value'),
    ],
)
def test_arguments_are_given_once_and_whole(argument, message):
    with pytest.raises(UsageError, match=message):
        get_config(QUICKSTART, argument)


def test_lengths_follow_until_they_are_set():
    """Evaluation uses the training segment length, and checkpoints follow evaluations."""
    config = base()
    config.train.segment_length, config.train.evaluate_every = 64, 30
    assert (config.evaluate.segment_length, config.checkpoint.every) == (64, 30)
    config.evaluate.segment_length, config.checkpoint.every = 16, 10
    config.train.segment_length, config.train.evaluate_every = 32, 60
    assert (config.evaluate.segment_length, config.checkpoint.every) == (16, 10)


def test_recall_is_runnable_with_every_kind():
    path = next(path for path in FILES if path.stem == 'recall')
    module = importlib.import_module('configs.recall')
    for kind in module.KINDS:
        config = get_config(path, f'tiny,kind={kind}')
        assert config.data.task.kind == kind and checks.find_problems(config, 1) == []
    with pytest.raises(UsageError, match='needle'):
        get_config(path, 'kind=needle')


@pytest.mark.parametrize('name', ['pg19', 'code', 'latex'])
def test_memories_of_any_size_are_runnable(name):
    path = next(path for path in FILES if path.stem == f'memorizing_{name}')
    for size in (0, 8192, 65536, 262144):
        for argument in (f'size={size}', f'tiny,size={size}', f'size={size},tiny'):
            config = get_config(path, argument)
            assert ('memorizing' in config.model.attention) == bool(size)
            if size:
                assert config.model.memorizing.memory_size == size
            assert checks.find_problems(config, 1) == []
    with pytest.raises(UsageError, match='size=many: must be an integer'):
        get_config(path, 'size=many')


def test_memories_inside_the_layers_are_runnable():
    for stem, arguments in {
        'pkm_lm': ('layers=12', 'layers=24', 'plain', 'tiny', 'tiny,plain', 'plain,tiny'),
        'memsizer_wikitext103': tuple(
            f'{size}memory={name}{more}'
            for size in ('', 'tiny,')
            for name in ('memsizer', 'linear', 'rfa', 't2r')
            for more in ('', ',carry')
        ),
    }.items():
        path = next(path for path in FILES if path.stem == stem)
        for argument in arguments:
            config = get_config(path, argument)
            assert checks.find_problems(config, 1) == [], argument
            assert ('plain' in argument) == (stem == 'pkm_lm' and 'product_key' not in config.model)
    with pytest.raises(UsageError, match='the paper has 12, 16, 24'):
        get_config(next(path for path in FILES if path.stem == 'pkm_lm'), 'layers=3')


@pytest.mark.parametrize('memory', ['infini', 'memorizing'])
def test_gates_are_the_papers_in_configs_of_papers_alone(memory):
    """Elsewhere they are shut while nothing is stored, without which pairs are hardly learned."""
    papers = dict(
        infini=('infini_pg19', 'tinystories_gpt_neo'),
        memorizing=('memorizing_pg19', 'memorizing_code', 'memorizing_latex'),
    )
    for stem in papers[memory]:
        for argument in ('', 'tiny'):
            config = get_config(next(path for path in FILES if path.stem == stem), argument)
            assert config.model[memory].skip_gate_when_empty is False, stem
    for name in ('quickstart', 'leaderboard', 'second_reading', 'recall', 'mqar', 'ruler'):
        config = configure(f'{name}:memory={memory}')
        assert config.model[memory].skip_gate_when_empty is True, name


def test_bad_memories_of_pairs_and_rows_are_said():
    cases = {
        'infini_pg19': dict(
            features='normalized', rule='delta_sequential', position='transformer_xl',
            epsilon=0.0,
        ),
        'memorizing_pg19': dict(
            top_k=9000, search='some', cache_dtype='int4', recall_target=2.0,
            position='learned_relative',
        ),
    }  # fmt: skip
    for stem, changes in cases.items():
        path = next(path for path in FILES if path.stem == stem)
        for field, value in changes.items():
            config = get_config(path, 'tiny')
            config.model[stem.split('_')[0]][field] = value
            found = checks.find_problems(config, 1)
            assert any(f'{field} = {value!r}' in problem for problem in found), (field, found)


def test_the_transformer_xl_of_expire_spans_configs_is_the_papers():
    """The base model with a fixed span: the same parameters but for spans; Dai et al.'s is another."""
    path = next(path for path in FILES if path.stem == 'expire_span_enwik8')
    fixed, adaptive, dai = (
        get_config(path, f'memory={name}')
        for name in ('transformer_xl', 'adaptive_span', 'transformer_xl_dai')
    )
    assert set(fixed.model.attention) == {'adaptive_span'}
    assert fixed.model.adaptive_span.per == 'none' and not fixed.train.loss_weights
    assert adaptive.model.adaptive_span.per == 'head'
    assert set(dai.model.attention) == {'transformer_xl'}
    for config in (fixed, adaptive, dai):
        assert checks.find_problems(config, 1) == []
    with pytest.raises(UsageError, match='transformer_xl_dai'):
        get_config(path, 'memory=transformer_xl_day')


def test_a_loss_may_be_switched_off_by_a_field_of_its_layer():
    config = with_memory('adaptive_span', per='none')
    assert 'adaptive_span' in config.train.loss_weights
    assert checks.find_problems(config, 1) == []


def test_evaluation_cuts_spans_and_never_rescales_them():
    config = with_memory('expire_span')
    config.evaluate.model = dict(expire_span=dict(limit=100, capacity=300, max_span=512))
    assert checks.find_problems(config, 1) == []
    for field, value in (('max_span', 100), ('pre_div', 2.0)):
        config.evaluate.model = dict(expire_span={field: value})
        (problem,) = checks.find_problems(config, 1)
        assert f'config.evaluate.model.expire_span.{field} = {value}: must be' in problem
    config.evaluate.model = dict(expire_span=dict(max_span=100))
    assert 'set limit' in checks.find_problems(config, 1)[0]


def test_what_keeps_spans_from_learning_is_no_problem_of_evaluation():
    config = with_memory('expire_span')
    config.evaluate.segment_length = 600
    assert checks.find_problems(config, 1) == []


def test_spans_bring_what_follows_from_them():
    path = next(path for path in FILES if path.stem == 'collision')
    short, long = (get_config(path, f'span={span}').model.expire_span for span in (1024, 65_536))
    assert short.capacity == 1024 + 128 + 256 and short.initial_share == 0.75
    assert long.capacity == 4096 and long.initial_share == 0.01


def test_spans_and_gaps_are_numbers():
    path = next(path for path in FILES if path.stem == 'collision')
    for span, shorten in ((32_768, False), (65_536, True)):
        model = get_config(path, f'span={span}').model
        assert model.expire_span.max_span == span and model.expire_span.shorten == shorten
    with pytest.raises(UsageError, match='span=far: must be an integer'):
        get_config(path, 'span=far')
    with pytest.raises(UsageError, match="did you mean 'expire_span'"):
        get_config(path, 'memory=expirespan')


def test_a_task_is_checked_with_the_rest():
    config = get_config(next(path for path in FILES if path.stem == 'copy'), 'tiny')
    config.data.task.span = 0
    assert any(
        'config.data.task.span = 0' in problem for problem in checks.find_problems(config, 1)
    )


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(num_basis=151), 'must be a multiple of the 2 widths'),
        (dict(tau=1.0), 'tau = 1.0: must lie between 0 and 1'),
        (dict(ridge=0.0), 'ridge = 0.0: must be above 0'),
        (dict(num_samples=5000), 'add nothing'),
        (dict(widths=(0.001, 0.05)), 'grows without bound'),
        (dict(widths=(0.0, 0.05)), 'numbers above 0'),
        (dict(sticky='always'), 'none, sampled, sampled_inside, quantile'),
        (dict(density='uniform'), 'gaussian, parabola'),
        (dict(kl='mean'), 'true, paper_eq21, as_released'),
        (dict(write_length=64), 'at least the segment length 128'),
        (dict(memory_threshold=100), 'at least write_length = 128'),
    ],
)
def test_bad_continuous_memories_are_one_clear_error(changes, message):
    config = base()
    use(config, 'infinity_former', given(num_basis=150, num_samples=512, widths=(0.01, 0.05)))
    assert checks.find_problems(config, 1) == []
    config.model.infinity_former.update(changes)
    problems = checks.find_problems(config, 1)
    assert len(problems) == 1 and re.search(message, problems[0]), problems


def test_a_memory_as_a_variant_is_told_how_to_write_it():
    with pytest.raises(UsageError, match='for the memory write memory=infini$'):
        configure('quickstart:infini')


def test_a_layer_without_the_methods_of_streams_is_refused():
    """It would train to the end, and then fail at the sample."""
    half = type('Half', (nn.Module,), {'initial_state': lambda self, batch_size: ()})
    entry = LAYERS['local']
    entry = dataclasses.replace(entry, layer=dataclasses.replace(entry.layer, module=half))
    (problem,) = layer_problems(entry, {}, {}, base().model, 8)
    assert problem.startswith('Half has no open_segment, close_segment, by which texts are read')
