"""Folders that are written and read again."""

import errno
import json
import math
import os
import shutil
from pathlib import Path

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from longmem_jax.config.recipes import section
from longmem_jax.devices.sharding import make_mesh
from longmem_jax.errors import UsageError
from longmem_jax.hosts import card, export, hosts, model_fields
from tests import toys
from tests.hosts.hosts_test import copied, folder_of, load
from tests.parity_systems.hosts import NAMES


def tensors_of(folder):
    found = {}
    for path in sorted(folder.glob('*.safetensors')):
        found |= load_file(path)
    return found


def assert_same(found, wanted):
    assert {*found} == {*wanted}
    for name, ours in found.items():
        assert ours.dtype == wanted[name].dtype and ours.tobytes() == wanted[name].tobytes(), name


def leaves(params):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


@pytest.mark.parametrize('name', NAMES)
def test_an_unchanged_host_is_the_same_bytes(name, tmp_path):
    host, params, _ = load(folder_of(name), make_mesh(dict(data=2, fsdp=4)))
    target = tmp_path / 'new' / 'folder'
    files = export.save(target, host.model, params, like=host)
    assert files == sorted(path.name for path in target.iterdir())
    assert_same(tensors_of(target), tensors_of(folder_of(name)))
    ours, theirs = ((path / 'config.json').read_bytes() for path in (target, folder_of(name)))
    assert ours == theirs
    assert [path.name for path in target.parent.iterdir()] == ['folder'], (
        'something was left behind'
    )


def test_half_precision_buffers_and_names_stay(tmp_path):
    def changed(tensors):
        tensors = {name.removeprefix('transformer.'): v for name, v in tensors.items()}
        tensors = {name: v.astype(jnp.bfloat16) for name, v in tensors.items()}
        return tensors | {
            'h.0.attn.bias': np.ones((1, 1, 32, 32), np.uint8),
            'h.0.attn.masked_bias': np.asarray(-1e4, np.float32),
            'lm_head.weight': tensors['wte.weight'],
        }

    folder = copied('gpt2', tmp_path, changed)
    (folder / 'tokenizer.json').write_text('{}')
    host, params, _ = load(folder)
    export.save(tmp_path / 'out', host.model, params, like=host)
    assert_same(tensors_of(tmp_path / 'out'), tensors_of(folder))
    assert (tmp_path / 'out' / 'tokenizer.json').read_text() == '{}'


def test_several_files_with_an_index(tmp_path):
    host, params, _ = load(folder_of('llama'))
    files = export.save(tmp_path / 'out', host.model, params, like=host, shard_bytes=20_000)
    assert 'model.safetensors.index.json' in files and 'model.safetensors' not in files
    index = json.loads((tmp_path / 'out' / 'model.safetensors.index.json').read_text())
    assert index['metadata']['total_size'] == 83840
    sizes = [path.stat().st_size for path in (tmp_path / 'out').glob('*.safetensors')]
    assert len(sizes) == len(set(index['weight_map'].values())) > 3 and max(sizes) < 25_000
    _, again, _ = load(tmp_path / 'out')
    for ours, theirs in zip(leaves(again), leaves(params), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize('name', NAMES)
def test_a_model_trained_here_becomes_a_host(name, tmp_path):
    """Without a folder that it began with: attributes are those of the family that it is a model of."""
    model = hosts.find(folder_of(name)).model
    module = hosts.make(model, 4)
    params = toys.parameters(module, 3)
    export.save(tmp_path / 'out', model, params)
    host, again, said = load(tmp_path / 'out')
    assert 'longmem' not in host.attributes and 'new: nothing' in said
    assert not model_fields.differences(host.model, model)
    for ours, theirs in zip(leaves(again), leaves(params), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def grafted(name='gpt2', **changes):
    host = hosts.find(folder_of(name))
    model = host.model.copy_and_resolve_references()
    model.attention, model.infini = ('full', 'infini'), section('infini', position='none')
    model.update(changes)
    module = hosts.make(model, 8)
    return host, model, module, hosts.load(host, module, report=lambda line: None)


@pytest.mark.parametrize(
    'changes', [{}, dict(position='none', num_positions=0), dict(tie_weights=False)]
)
def test_a_memory_goes_with_its_host(changes, tmp_path):
    """Bit for bit, also where the model has no use for some of the host's tensors, which stay."""
    host, model, module, params = grafted(**changes)
    if not model.tie_weights:
        params['embedding']['out_table_0'] = params['embedding']['table_0'] + 1
    params['block_1']['attention']['gate'] = params['block_1']['attention']['gate'] + 0.5
    export.save(tmp_path / 'out', model, params, like=host)
    found = hosts.find(tmp_path / 'out')
    assert found.attributes['longmem']['model']['attention'] == ['full', 'infini']
    assert not model_fields.differences(found.model, model)
    again = hosts.load(found, hosts.make(found.model, 8), report=lambda line: None)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    for ours, theirs in zip(leaves(again), leaves(params), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    tensors = tensors_of(tmp_path / 'out')
    theirs = tensors_of(folder_of('gpt2'))
    assert {name for name in tensors if not name.startswith('longmem.')} >= {*theirs}
    assert 'longmem.block_1.attention.gate' in tensors
    assert found.attributes['tie_word_embeddings'] == model.tie_weights
    # Exported again, without the folder of the host: from the exported folder alone.
    export.save(tmp_path / 'twice', found.model, again, like=found)
    assert_same(tensors_of(tmp_path / 'twice'), tensors)


def test_a_memory_without_its_tensors_is_refused(tmp_path):
    host, model, _, params = grafted()
    out = tmp_path / 'out'
    export.save(out, model, params, like=host, segment_length=8)
    path = out / 'model.safetensors'
    tensors = load_file(path)
    del tensors['longmem.block_1.attention.gate']
    save_file(tensors, path)
    found = hosts.find(out)
    assert found.segment_length == 8
    with pytest.raises(UsageError, match='missing tensors: block_1/attention/gate'):
        hosts.load(found, hosts.make(found.model, 8))
    hosts.load(found, hosts.make(found.plain, 8))  # the host by itself is whole


def test_the_card_says_what_the_memory_is():
    _, model, _, _ = grafted()
    text = card.model_card('Name', model, base_model='gpt2', step=3)
    assert text.startswith('---\nlibrary_name: "longmem_jax"\n') and 'model-index' not in text
    assert '- `infini` in layers 1: ' in text
    assert 'Trained for 3 steps with longmem_jax. It began with the parameters of `gpt2`.' in text
    model.attention, model.feed_forward = ('full', 'full'), ('product_key', 'dense')
    model.product_key = section('product_key')
    text = card.model_card('Name', model)
    assert '- `product_key` in layers 0: ' in text and 'None, only' not in text


def test_the_hub_reads_the_scores_of_a_card():
    """With the hub's own library, from the same front matter."""
    model = hosts.find(folder_of('gpt2')).model
    test = {'loss': 9e-5, 'bits_per_byte': 1.23456, 'perplexity': math.inf, 'accuracy': None}
    results = {
        'step': 3, 'test': {**test, 'protocol': 'a|b: c'}, 'device': '1 x cpu',
        'test, memory reset': {'bits_per_byte': 2}, 'neither': {'seconds': 7.0},
    }  # fmt: skip
    text = card.model_card(
        'A "name": x',
        model,
        metadata={'license': 'mit', 'base_model': 'org/host'},
        results=results,
        dataset={'type': 'text', 'name': 'Bücher', 'split': 'test'},
    )
    found = huggingface_hub.ModelCard(text).data
    assert (found.license, found.base_model) == ('mit', 'org/host')
    assert found.model_name == 'A "name": x'
    scores = {(each.metric_name, each.metric_type): each for each in found.eval_results}
    assert {key: each.metric_value for key, each in scores.items()} == {
        ('bits/byte (test)', 'bits_per_byte'): 1.2346,
        ('nats/token (test)', 'loss'): 0.0001,
        ('bits/byte (test, memory reset)', 'bits_per_byte'): 2.0,
    }
    first = scores['bits/byte (test)', 'bits_per_byte']
    assert (first.dataset_name, first.dataset_split) == ('Bücher', 'test')
    assert first.dataset_args == {'protocol': 'a|b: c'}
    assert '| evaluation | bits/byte | nats/token |\n| --- | --- | --- |\n' in text
    assert '| test | 1.2346 | 0.0001 |\n| test, memory reset | 2.0000 |  |\n' in text
    assert '- test: a|b: c\n' in text and '- device: 1 x cpu\n- test, memory' in text
    assert '- neither: seconds 7\n' in text


def test_nothing_is_written_where_something_is_wrong(tmp_path, monkeypatch):
    host, params, _ = load(folder_of('gpt2'))
    full = tmp_path / 'full'
    full.mkdir()
    (full / 'mine').write_text('')
    with pytest.raises(UsageError, match='already has files'):
        export.save(full, host.model, params, like=host)
    model = host.model.copy_and_resolve_references()
    model.attention, model.infini = ('infini',) * 2, section('infini')
    with pytest.raises(UsageError, match='not a model of a Hugging Face family'):
        export.save(tmp_path / 'other', model, params)

    def fails(*arguments):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(export.Path, 'write_bytes', fails)
    with pytest.raises(UsageError, match='No space left'):
        export.save(tmp_path / 'late', host.model, params, like=host)
    assert [path.name for path in tmp_path.iterdir()] == ['full']
    assert [path.name for path in full.iterdir()] == ['mine']


def test_a_name_that_was_given_in_spite_of_an_error_is_taken_back(tmp_path, monkeypatch):
    """Or the same command would find a folder with files."""
    host, params, _ = load(copied('gpt2', tmp_path / 'a'))
    replace = Path.replace

    def lost(path, target):
        replace(path, target)
        if Path(target) == tmp_path / 'out':
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return target

    with monkeypatch.context() as patched:
        patched.setattr(Path, 'replace', lost)
        with pytest.raises(UsageError, match='out: cannot be written'):
            export.save(tmp_path / 'out', host.model, params)
    assert [path.name for path in tmp_path.iterdir()] == ['a']
    export.save(tmp_path / 'out', host.model, params)


def test_a_folder_that_cannot_be_deleted_hides_no_error(tmp_path, monkeypatch):
    """Closing a folder while it is deleted may fail, too: the first error is reported."""
    host, params, _ = load(copied('gpt2', tmp_path / 'a'))

    def fail(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, 'replace', fail)
    monkeypatch.setattr(shutil, 'rmtree', fail)
    with pytest.raises(UsageError, match='out: cannot be written'):
        export.save(tmp_path / 'out', host.model, params, like=host)


def test_a_file_that_is_linked_to_from_a_host_is_not_published(tmp_path):
    """The files of the hub's cache are links as well, but to its own."""
    secret = tmp_path / 'private.txt'
    secret.write_text('secret')
    folder = copied('gpt2', tmp_path / 'a')
    (folder / 'merges.txt').symlink_to(secret)
    host, params, _ = load(folder)
    with pytest.raises(
        UsageError, match=r'merges.txt: is a link to .*private.txt, out of the folder'
    ):
        export.save(tmp_path / 'out', host.model, params, like=host)
    assert not (tmp_path / 'out').exists()
    cached = tmp_path / 'models--org--name'
    (cached / 'blobs').mkdir(parents=True)
    shutil.copytree(folder, cached / 'snapshots' / 'c0', ignore=lambda *_: ['merges.txt'])
    (cached / 'blobs' / '123').write_text('#version: 0.2\n')
    (cached / 'snapshots' / 'c0' / 'merges.txt').symlink_to('../../blobs/123')
    host = hosts.find(cached / 'snapshots' / 'c0')
    assert 'merges.txt' in export.save(tmp_path / 'out', host.model, params, like=host)
    assert (tmp_path / 'out' / 'merges.txt').read_text() == '#version: 0.2\n'
    (cached / 'snapshots' / 'c0' / 'vocab.json').write_text('-----BEGIN')
    with pytest.raises(UsageError, match='vocab.json: not JSON'):
        export.save(tmp_path / 'other', host.model, params, like=host)
