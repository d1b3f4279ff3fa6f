"""GGUF files as hosts: attributes, tensors and their order, parts, and what is refused."""

import sys
import tracemalloc

import jax
import numpy as np
import pytest

from longmem_jax.devices.sharding import make_mesh
from longmem_jax.errors import UsageError
from longmem_jax.hosts import export, gguf_tensors, hosts, model_fields
from longmem_jax.hosts.gguf_attributes import attributes_of
from longmem_jax.hosts.gguf_tensors import GgufFile
from longmem_jax.untrusted import gguf_file
from longmem_jax.untrusted.gguf_file import Header, Tensor
from tests.hosts import gguf_files
from tests.hosts.gguf_files import BLOCKS, FOLDER, MODELS
from tests.hosts.hosts_test import load
from tests.parity import compare


def test_logits_are_those_of_transformers():
    """The other architectures are among the goldens."""
    for name, error, tolerance in compare(FOLDER / 'llama.npz'):
        assert error <= tolerance, name


def test_blocks_give_the_logits_of_transformers():
    pytest.importorskip('gguf')  # the extra [gguf]
    for name, error, tolerance in compare(BLOCKS / 'llama.npz'):
        assert error <= tolerance, name


@pytest.mark.slow
@pytest.mark.parametrize('kind', MODELS)
@pytest.mark.parametrize('blocks', [False, True])
def test_the_packages_of_today(kind, blocks, tmp_path):
    """The stored numbers are what the packages give now."""
    for package in ('gguf', 'torch', 'transformers', 'accelerate'):
        pytest.importorskip(package)
    if blocks and kind != 'llama':
        return
    path = tmp_path / f'{kind}.gguf'
    gguf_files.write(path, kind, blocks)
    stored = (BLOCKS if blocks else FOLDER) / path.name
    assert path.read_bytes() == stored.read_bytes(), 'python -m tests.hosts.gguf_files'
    with np.load(stored.with_suffix('.npz')) as file:
        given = gguf_files.logits(path, file['in/tokens'])
        np.testing.assert_allclose(given, file['out/logits'], atol=1e-4)


def test_sizes_of_blocks_are_those_of_the_package():
    gguf = pytest.importorskip('gguf')
    known = {kind.value: (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert gguf_file.TYPES.items() <= known.items()


@pytest.mark.parametrize('kind', MODELS)
def test_every_number_is_read_once(kind):
    """On one device, and on 8 by heads and by width: the same."""
    host, params, said = load(FOLDER / f'{kind}.gguf', make_mesh({}, jax.devices()[:1]))
    assert 'new: nothing; ignored: nothing' in said
    assert host.files.bytes_read == host.files.num_bytes(host.files.shapes)
    _, sharded, _ = load(FOLDER / f'{kind}.gguf', make_mesh(dict(fsdp=4, data=2)))
    for ours, theirs in zip(jax.tree.leaves(sharded), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize('kind', ['llama', 'gpt2'])
def test_any_part_of_a_tensor(kind):
    """Rows of rotated heads are in another order, and GPT-2's maps are turned around."""
    files = GgufFile(FOLDER / f'{kind}.gguf')
    for name, shape in files.shapes.items():
        whole = files.whole(name)
        assert whole.shape == shape
        for index in (
            tuple(slice(0, size, 1) for size in shape),
            tuple(slice(size // 3, size - 3, 1) for size in shape),
            tuple(slice(size // 2, size // 2, 1) for size in shape),
        ):
            np.testing.assert_array_equal(files.read(name, index), whole[index])


def test_pairs_that_are_rotated_become_halves():
    """Checked by number: row 1 of a head in the file is row width / 2."""
    files, header = GgufFile(FOLDER / 'llama.gguf'), gguf_file.read_header(FOLDER / 'llama.gguf')
    tensor = header.tensors['blk.1.attn_k.weight']
    content = (FOLDER / 'llama.gguf').read_bytes()[tensor.start : tensor.end]
    rows = np.frombuffer(content, np.float16).reshape(tensor.shape)
    found = files.whole('model.layers.1.self_attn.k_proj.weight')
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    np.testing.assert_array_equal(found, rows[[*order, *(8 + i for i in order)]])


def test_an_export_is_a_folder_with_the_same_numbers_and_tokenizer(tmp_path):
    host, params, _ = load(FOLDER / 'qwen2.gguf')
    written = export.save(tmp_path / 'out', host.model, params, like=host)
    assert written == [
        'config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json',
        'tokenizer_config.json',
    ]  # fmt: skip
    again, same, _ = load(tmp_path / 'out')
    assert again.model == host.model and again.files.dtypes == host.files.dtypes
    for name in host.files.shapes:
        np.testing.assert_array_equal(host.files.whole(name), again.files.whole(name))
    for ours, theirs in zip(jax.tree.leaves(same), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_tensor_is_made_without_a_second_copy(monkeypatch):
    pytest.importorskip('gguf')
    monkeypatch.setattr(gguf_tensors, 'CHUNK', 1 << 11)
    files = GgufFile(BLOCKS / 'llama.gguf')
    name = 'model.embed_tokens.weight'
    files.whole(name)
    tracemalloc.start()
    made = files.whole(name)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.2 * made.nbytes + (64 << 10)


def header_of(kind, tensors=None, **changes):
    """The header of a file with other metadata (None = removed); `__` for a dot."""
    found = gguf_file.read_header(FOLDER / f'{kind}.gguf')
    given = found.metadata | {name.replace('__', '.'): value for name, value in changes.items()}
    given = {name: value for name, value in given.items() if value is not None}
    return Header(given, found.tensors if tensors is None else tensors)


def attributes(kind, frequencies=None, **changes):
    return attributes_of(header_of(kind, **changes), FOLDER / f'{kind}.gguf', frequencies)


def test_what_a_file_leaves_out():
    given = attributes('llama', llama__attention__head_count_kv=None, llama__rope__freq_base=None)
    assert (
        given['num_key_value_heads'] == 4
        and given['rope_theta'] == 10000
        and given['head_dim'] == 8
    )
    assert attributes('llama')['rms_norm_eps'] == 1e-5  # as written, not as 32 bits hold it
    assert attributes('qwen2')['tie_word_embeddings'] is False
    assert attributes('gpt2')['tie_word_embeddings'] is True


def test_scaled_rotations():
    given = attributes(
        'llama', llama__rope__scaling__type='linear', llama__rope__scaling__factor=2.0
    )
    model = model_fields.model_of(given, 'F')
    assert model.rotary_scaling == 'linear' and model.rotary_factor == 2
    given = attributes(
        'qwen2', qwen2__rope__scaling__type='yarn', qwen2__rope__scaling__factor=4.0,
        qwen2__rope__scaling__original_context_length=16,
    )  # fmt: skip
    model = model_fields.model_of(given, 'F')
    assert model.rotary_scaling == 'yarn' and model.rotary_original == 16


def test_llama_3_is_known_by_its_factors():
    """Its three numbers are not in the file; the factors that follow from them are."""
    turns = 8192 / (2 * np.pi) * 500000.0 ** (-np.arange(64) / 64)
    share = np.clip((turns - 1) / 3, 0, 1)
    factors = (1 / ((1 - share) / 8 + share)).astype(np.float32)
    shape = dict(llama__attention__key_length=128, llama__attention__value_length=128)
    shape |= dict(llama__rope__dimension_count=128, llama__rope__freq_base=500000.0)
    model = model_fields.model_of(attributes('llama', factors, **shape), 'F')
    assert model.rotary_scaling == 'llama3' and model.rotary_factor == 8
    assert model.rotary_bands == (1.0, 4.0) and model.rotary_original == 8192
    for wrong in (factors * 1.01, factors[:-1], np.full(64, np.nan, np.float32), 0 * factors):
        with pytest.raises(UsageError, match='only the factors of Llama 3 are supported'):
            attributes('llama', wrong, **shape)


@pytest.mark.parametrize(
    'kind, changes, message',
    [
        ('llama', dict(general__architecture='gemma'), "general.architecture = 'gemma'"),
        ('llama', dict(general__architecture=None), 'general.architecture = None'),
        ('llama', dict(general__type='adapter'), "general.type = 'adapter', not a model"),
        ('llama', dict(llama__block_count=None), 'llama: block_count is missing'),
        ('llama', dict(llama__block_count=0), 'block_count = 0: must be above 0'),
        ('llama', dict(llama__block_count='2'), "block_count = '2'"),
        ('llama', dict(llama__embedding_length=2**40), 'at most 1073741824'),
        ('llama', dict(llama__attention__head_count=np.ones(2)), 'attention.head_count = array'),
        ('llama', dict(llama__expert_count=8), 'expert_count = 8: only 0'),
        ('llama', dict(llama__rope__dimension_count=4), 'rope.dimension_count = 4: only 8'),
        ('llama', dict(llama__attention__value_length=4), 'attention.value_length = 4: only 8'),
        ('llama', dict(llama__rope__scaling__type='longrope'), "'longrope': none, linear, yarn"),
        ('llama', dict(llama__rope__scaling__type='linear'), 'rope.scaling.factor is missing'),
        ('llama', dict(llama__attention__sliding_window=9), 'sets attention.sliding_window'),
        ('llama', dict(llama__rope__freq_base=float('nan')), 'a finite number is needed'),
        ('gpt2', dict(gpt2__attention__scale=2.0), 'sets attention.scale: not supported'),
        ('llama', dict(tensors={}), 'has no tensor token_embd.weight'),
    ],
)
def test_what_is_refused(kind, changes, message):
    with pytest.raises(UsageError) as error:
        attributes(kind, **changes)
    assert message in str(error.value), error.value


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda t: t.pop('blk.0.attn_q.weight'), 'missing are layers.0.self_attn.q_proj.weight'),
        (lambda t: t.update({'blk.7.attn_q.weight': t['output_norm.weight']}), 'not of this model are'),
        (lambda t: t.update({'blk.0.ssm.weight': t['output_norm.weight']}), 'blk.0.ssm.weight'),
        (lambda t: t.update({'blk.00.attn_q.weight': t['output_norm.weight']}), 'blk.00.attn_q.weight'),
        (lambda t: t.update({'model.norm.weight': t['output_norm.weight']}), 'two names'),
        (lambda t: t.update({'output.weight': t['output_norm.weight']}), 'lm_head.weight is (32,)'),
        (
            lambda t: t.update({'output_norm.weight': Tensor('F32', (4, 2, 4), 0, 128)}),
            'model.norm.weight is (4, 2, 4)',
        ),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(change, message, monkeypatch):
    header = header_of('llama')
    change(header.tensors)
    monkeypatch.setattr(gguf_file, 'read_header', lambda path: header)
    with pytest.raises(UsageError) as error:
        load(FOLDER / 'llama.gguf')
    assert message in str(error.value), error.value


def test_numbers_that_are_not_finite(tmp_path):
    content = bytearray((FOLDER / 'llama.gguf').read_bytes())
    tensor = gguf_file.read_header(FOLDER / 'llama.gguf').tensors['output_norm.weight']
    content[tensor.start : tensor.start + 4] = b'\xff' * 4
    (tmp_path / 'x.gguf').write_bytes(content)
    with pytest.raises(UsageError, match='model.norm.weight has numbers that are not finite'):
        load(tmp_path / 'x.gguf')


def test_a_file_that_is_not_there_or_shrinks(tmp_path):
    with pytest.raises(UsageError, match='x.gguf: cannot be read'):
        hosts.find(tmp_path / 'x.gguf')
    assert hosts.is_name(tmp_path / 'x.gguf') and not hosts.is_name(tmp_path)
    content = (FOLDER / 'llama.gguf').read_bytes()
    (tmp_path / 'x.gguf').write_bytes(content)
    host = hosts.find(tmp_path / 'x.gguf')
    (tmp_path / 'x.gguf').write_bytes(content[:9000])
    with pytest.raises(UsageError, match='not a whole GGUF file .it ends early'):
        hosts.load(host, hosts.make(host.model, 4), report=lambda line: None)


def test_without_the_package_blocks_are_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, 'gguf', None)
    with pytest.raises(UsageError, match=r"Q4_0, .*pip install 'longmem_jax\[gguf\]'"):
        hosts.find(BLOCKS / 'llama.gguf')
    hosts.find(FOLDER / 'llama.gguf')  # 32 and 16 bits need none


def test_a_file_without_the_ending_is_known_by_its_first_bytes(tmp_path):
    path = tmp_path / 'sha256-0123'
    path.write_bytes((FOLDER / 'llama.gguf').read_bytes())
    assert hosts.is_host(path) and hosts.find(path).plain == hosts.find(FOLDER / 'llama.gguf').plain
    path.write_bytes(b'GGML')
    assert not hosts.is_host(path) and not hosts.is_host(tmp_path / 'missing')
