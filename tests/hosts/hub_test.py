"""A name on the hub: fetched from a server here that answers as the hub does."""

import hashlib
import http.server
import json
import threading

import jax
import numpy as np
import pytest

from longmem_jax.errors import UsageError
from longmem_jax.hosts import hosts
from tests.hosts.hosts_test import folder_of

COMMIT, OTHER = 'c' * 40, 'v1.0'
# Weights in other formats and copies for other programs, as real repositories have them.
OTHERS = (
    'pytorch_model.bin', 'tf_model.h5', 'onnx/model.safetensors', 'onnx/config.json',
    'consolidated.safetensors',
)  # fmt: skip


def answers(files):
    """The class of a server with one repository, 'org/name'; `files`: name to content."""

    class Answers(http.server.BaseHTTPRequestHandler):
        fetched, asked = [], []

        def do_GET(self):
            self.reply(body=True)

        def do_HEAD(self):
            self.reply(body=False)

        def reply(self, body):
            path = self.path.partition('?')[0]
            _, _, revision = path.partition('/api/models/org/name/revision/')
            if revision in ('main', OTHER) or path == '/api/models/org/name':
                siblings = [{'rfilename': name} for name in files]
                self.asked.append(revision)
                about = dict(id='org/name', sha=COMMIT, siblings=siblings)
                content = json.dumps(about).encode()
            elif path.startswith('/api/models/org/name/tree/'):
                entries = [
                    dict(type='file', path=name, size=len(data), oid=hashlib.sha1(data).hexdigest())
                    for name, data in files.items()
                ]
                content = json.dumps(entries).encode()
            else:
                name = path.removeprefix(f'/org/name/resolve/{COMMIT}/')
                content = files.get(name)
                if body and content is not None:
                    self.fetched.append(name)
            if content is None:
                self.send_response(404)
                self.send_header('X-Error-Code', 'RepoNotFound')
                content = b''
            else:
                self.send_response(200)
                self.send_header('X-Repo-Commit', COMMIT)
                self.send_header('ETag', f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header('Content-Length', str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_):
            """Prints nothing."""

    return Answers


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub on this machine; the names that it was asked for are in `fetched`."""
    pytest.importorskip('huggingface_hub')  # the extra [hf]
    from huggingface_hub import constants

    files = {path.name: path.read_bytes() for path in folder_of('gpt2').iterdir()}
    files.update(dict.fromkeys(OTHERS, b'not for us'))
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), answers(files))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f'http://127.0.0.1:{server.server_address[1]}'
    monkeypatch.setattr(constants, 'ENDPOINT', address)
    template = address + '/{repo_id}/resolve/{revision}/{filename}'
    monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
    yield server.RequestHandlerClass
    server.shutdown()
    server.server_close()


def test_a_name_is_fetched_once_and_only_what_a_host_has(hub):
    found, local = hosts.find('org/name'), hosts.find(folder_of('gpt2'))
    assert found.files.shapes == local.files.shapes
    loaded = [
        hosts.load(host, hosts.make(host.model, 8), report=lambda line: None)
        for host in (found, local)
    ]
    jax.tree.map(np.testing.assert_array_equal, *loaded)
    assert not {*hub.fetched} & {*OTHERS}, f'downloaded for nothing: {hub.fetched}'
    first = list(hub.fetched)
    assert 'config.json' in first and hosts.find('org/name').folder == found.folder
    assert hub.fetched == first


def test_a_name_that_is_not_there(hub):
    with pytest.raises(UsageError, match='the Hugging Face hub gave no model of that name'):
        hosts.find('org/nothing')


def test_a_name_with_a_revision(hub):
    assert hosts.find(f'org/name@{OTHER}').files.shapes and OTHER in hub.asked
    with pytest.raises(UsageError, match='it is not a name on the hub'):
        hosts.find('org/name@a b')
