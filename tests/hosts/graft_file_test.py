"""A graft: put onto its own host alone, by fields and tensors that are checked."""

import functools
import json
import sys
import types

import jax
import ml_collections
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from configs import host as host_config
from longmem_jax.config.recipes import section
from longmem_jax.errors import UsageError
from longmem_jax.hosts import graft_file, hosts
from longmem_jax.hosts.commands.export import export
from tests import toys
from tests.hosts.gguf_files import FOLDER
from tests.hosts.hosts_test import copied, folder_of


def grafted(source, path, layers=('full', 'infini')):
    """Writes a graft of random parameters for a host; returns all parameters of the model."""
    host = hosts.find(source)
    model = host.model.copy_and_resolve_references()
    model.attention, model.infini = layers, section('infini')
    model.lora.rank = 2
    params = toys.parameters(hosts.make(model, 4))
    own = hosts.shapes(hosts.make(host.plain, 4))
    flat = {'/'.join(key): leaf for key, leaf in walk(params) if '/'.join(key) not in own}
    graft_file.write(
        path,
        flat,
        dict(
            model=model.to_dict(),
            segment_length=4,
            host='h',
            fingerprint=graft_file.fingerprint(host.attributes, host.files),
        ),
    )
    return flat


def walk(params):
    import flax.traverse_util

    return flax.traverse_util.flatten_dict(jax.tree.map(np.asarray, params)).items()


@pytest.mark.parametrize(
    'source', [folder_of('llama'), FOLDER / 'llama.gguf'], ids=['folder', 'gguf']
)
def test_a_host_with_a_graft(source, tmp_path):
    added = grafted(source, tmp_path / 'g.safetensors')
    host = hosts.find(f'{source} + {tmp_path / "g.safetensors"}')
    assert host.model.attention == ('full', 'infini') and host.segment_length == 4
    lines = []
    params = hosts.load(host, hosts.make(host.model, 4), report=lines.append)
    assert 'new: nothing; ignored: nothing' in lines[0]
    found = {'/'.join(key): leaf for key, leaf in walk(params)}
    assert any(name.endswith('lora/b') for name in added) and any('gate' in name for name in added)
    for name, leaf in added.items():
        np.testing.assert_array_equal(found[name], leaf)
    plain = hosts.load(hosts.find(source), hosts.make(host.plain, 4), report=lambda line: None)
    for key, leaf in walk(plain):
        np.testing.assert_array_equal(found['/'.join(key)], leaf)


def test_another_host_is_refused(tmp_path):
    file = tmp_path / 'g.safetensors'
    grafted(folder_of('llama'), file)

    def changed(tensors):
        tensors['model.layers.1.self_attn.v_proj.weight'][0, 0] += 1e-3
        return tensors

    for folder in (
        folder_of('qwen2'), copied('llama', tmp_path / 'a', changed),
        copied('llama', tmp_path / 'b', rms_norm_eps=1e-3),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="was trained with another host, 'h'"):
            hosts.find(f'{folder} + {file}')
    hosts.find(f'{copied("llama", tmp_path / "c", bos_token_id=3)} + {file}')  # changes nothing


def test_files_that_are_no_grafts(tmp_path):
    source, file = folder_of('llama'), tmp_path / 'g.safetensors'
    with pytest.raises(UsageError, match='cannot be read'):
        hosts.find(f'{source} + {file}')
    save_file({'a': np.ones(2, np.float32)}, file)
    with pytest.raises(UsageError, match='is not a graft'):
        hosts.find(f'{source} + {file}')
    for description in ('{', '{}', '[]', '{"model": {}, "segment_length": 0}'):
        save_file({'a': np.ones(2, np.float32)}, file, {graft_file.DESCRIPTION: description})
        with pytest.raises(UsageError, match=graft_file.DESCRIPTION):
            hosts.find(f'{source} + {file}')
    host = hosts.find(source)
    mark = graft_file.fingerprint(host.attributes, host.files)
    given = dict(model=host.model.to_dict(), segment_length=4, host='h', fingerprint=mark)
    save_file({'a': np.ones(2, np.float32)}, file, {graft_file.DESCRIPTION: json.dumps(given)})
    with pytest.raises(UsageError, match="'a' is not a parameter of a graft"):
        hosts.find(f'{source} + {file}')
    grafted(source, file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UsageError, match='checksum'):
        hosts.find(f'{source} + {file}')


def test_tensors_that_the_description_does_not_have(tmp_path):
    """As those of a graft whose description was changed."""
    source, file = folder_of('llama'), tmp_path / 'g.safetensors'
    added = grafted(source, file)
    host = hosts.find(f'{source} + {file}')
    given = dict(
        model=host.model.to_dict(), segment_length=4, host='h',
        fingerprint=graft_file.fingerprint(host.attributes, host.files),
    )  # fmt: skip
    del added['block_1/attention/gate']
    graft_file.write(file, added, given)
    host = hosts.find(f'{source} + {file}')
    with pytest.raises(UsageError, match='missing tensors: block_1/attention/gate'):
        hosts.load(host, hosts.make(host.model, 4), report=lambda line: None)
    assert load_file(file).keys() == {'longmem.' + name.replace('/', '.') for name in added}


@pytest.mark.parametrize(
    'argument, message',
    [
        ('graft=g', 'path=FOLDER is needed too'),
        ('path={source},graft=g,memory=infini', 'brings its memory; leave out memory='),
        ('path={source},graft=g,beside', 'brings its memory; leave out memory='),
    ],
)
def test_arguments_that_do_not_go_together(argument, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grafted(folder_of('llama'), tmp_path / 'g')
    with pytest.raises(UsageError, match=message):
        host_config.get_config(argument.format(source=folder_of('llama')))


def run_of(source, model, params, folder):
    """What an export needs of a run."""
    return types.SimpleNamespace(
        config=ml_collections.ConfigDict(
            dict(train=dict(start_from=str(source), segment_length=4), model=model)
        ),
        restore_parameters=lambda: (params, 3),
        workdir=folder,
        mesh=None,
    )


def test_a_run_is_exported_and_goes_on(tmp_path):
    """Also from the graft: the file has what was trained since, and belongs to the same host."""
    source, first, second = folder_of('llama'), tmp_path / 'a', tmp_path / 'b'
    grafted(source, first)
    began = f'{source} + {first}'
    host = hosts.find(began)
    params = hosts.load(host, hosts.make(host.model, 4), report=lambda line: None)
    gate = params['block_1']['attention']['gate']
    params['block_1']['attention']['gate'] = gate + 1
    export(run_of(began, host.model, params, tmp_path), graft=str(second))
    again = hosts.find(f'{source} + {second}')
    assert again.model == host.model
    name = 'longmem.block_1.attention.gate'
    np.testing.assert_array_equal(again.files.whole(name), host.files.whole(name) + 1)
    kernel = params['block_0']['feed_forward']['up']['kernel']
    params['block_0']['feed_forward']['up']['kernel'] = kernel.at[0, 0].add(1e-3)
    with pytest.raises(UsageError, match='changed parameters of the host: block_0/feed_forward/up'):
        export(run_of(began, host.model, params, tmp_path), graft=str(second))
    with pytest.raises(UsageError, match='began with an untouched host'):
        export(run_of('', host.model, params, tmp_path), graft=str(second))


def test_a_graft_of_the_hub(tmp_path, monkeypatch):
    """Pushed as its file and a card, and found by its name."""
    source, file, asked = folder_of('llama'), tmp_path / 'a', []
    grafted(source, file)

    def answer(function, *given, **named):
        asked.append((function, given, named))
        return types.SimpleNamespace(commit_url='https://hub/commit/1')

    class Api:
        def __getattr__(self, function):
            return functools.partial(answer, function)

    library = types.SimpleNamespace(HfApi=Api)
    monkeypatch.setitem(sys.modules, 'huggingface_hub', library)
    host = hosts.find(f'{source} + {file}')
    params = hosts.load(host, hosts.make(host.model, 4), report=lambda line: None)
    run = run_of(f'{source} + {file}', host.model, params, tmp_path)
    run.config.data = dict(source='text', path='', name='')
    export(run, graft=str(tmp_path / 'b'), push='org/name@v1', license='mit')
    functions = [function for function, *_ in asked]
    assert functions == ['whoami', 'create_repo', 'create_branch', 'upload_file', 'upload_file']
    sent = {named['path_in_repo']: named['path_or_fileobj'] for *_, named in asked[3:]}
    assert sent['memory.safetensors'] == tmp_path / 'b'
    card = sent['README.md'].decode()
    assert 'license: "mit"' in card and 'graft=org/name' in card and str(tmp_path) not in card
    assert 'model = hosts.make(host.model, segment_length=4)' in card  # as it was trained
    hub = tmp_path / 'hub'
    hub.mkdir()
    library.snapshot_download = lambda name, **named: asked.append((name, named)) or str(hub)
    with pytest.raises(UsageError, match='org/name@v1: has no memory.safetensors'):
        hosts.find(f'{source} + org/name@v1')
    (tmp_path / 'b').rename(hub / 'memory.safetensors')
    assert hosts.find(f'{source} + org/name@v1').model == host.model
    name, named = asked[-1]
    assert (name, named['revision']) == ('org/name', 'v1')
    assert named['allow_patterns'] == ['memory.safetensors']


def test_one_kind_of_export():
    with pytest.raises(UsageError, match='--folder and --graft: give one of them'):
        export(None, 'a', 'b')
    with pytest.raises(UsageError, match='--folder= is missing: the folder to write, or --graft='):
        export(None)
