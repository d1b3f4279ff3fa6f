"""Every reader of files that others may have made: whole files, and how they are read and used."""

import functools
import json
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from experiments.hosts import minimal_pairs
from longmem_jax.commands.import_checkpoint import ARGUMENTS, import_checkpoint
from longmem_jax.config import checks
from longmem_jax.config.base import base
from longmem_jax.config.saved import saved_config
from longmem_jax.data import conventions, learn_tokenizer
from longmem_jax.data.documents import Document
from longmem_jax.data.json_lines import read_examples
from longmem_jax.data.lanes import Cursor
from longmem_jax.data.load import load_source
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.generation import memory_file
from longmem_jax.generation.reader import fresh_state
from longmem_jax.hosts import chat, hosts
from longmem_jax.hosts.data import cmu_dog, superglue
from longmem_jax.lifelong.data import classification, qa, relations
from longmem_jax.released import transformer_xl
from longmem_jax.retrieval import build_datastore, progress_file, search, verified
from longmem_jax.retrieval.datastore import Datastore, read_manifest
from longmem_jax.retrieval.faiss_index import Faiss
from longmem_jax.retrieval.reading import Reader
from longmem_jax.untrusted import json_file, schema
from tests import parity
from tests.commands.import_arguments_test import SETTINGS, SHAPES
from tests.hosts import gguf_files, graft_file_test
from tests.hosts.data import cmu_dog_test, superglue_test
from tests.hosts.hosts_test import folder_of
from tests.retrieval.stores import write_store
from tests.toys import toy

TEXT = 'the cat sat on the mat\nthe dog sat\nzo\u00eb sat on a caf\u00e9 \u2603 the end\n' * 20
PROBE = 'the caf\u00e9 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab \U0001f642\n'


class Case(NamedTuple):
    """A reader.

    Attributes:
      make: writes whole files to a folder.
      names: the files that are damaged, relative to the folder.
      read: reads them, and uses what they hold as the library does.
    """

    make: Callable[[Path], None]
    names: tuple[str, ...]
    read: Callable[[Path], None]


def store(folder: Path) -> None:
    random = np.random.default_rng(0)
    write_store(
        folder,
        random.normal(size=(40, 4)).astype(np.float32),
        np.arange(40) // 10,
        np.arange(40) % 7,
    )


def read_store(folder: Path) -> None:
    """Opens a datastore, and does what building it again would do before anything is compiled."""
    manifest = read_manifest(folder)
    if not build_datastore._problem(folder, manifest) and not manifest['complete']:
        path = folder / manifest.get('progress', 'none')
        assert path.parent == folder and '/' not in path.name
    opened = Datastore(folder, None, False, vocab_size=7)
    numbers = np.arange(len(opened))
    values = opened.rows('values', numbers)
    assert 0 <= values.min() and values.max() < 7
    queries = np.zeros((2, opened.width), np.float32)
    assert np.isfinite(search.distances(opened, queries, np.stack([numbers[:3]] * 2))).all()
    opened.rows('contexts', numbers)


def unfinished(folder: Path) -> None:
    store(folder)
    manifest = json.loads((folder / 'manifest.json').read_text())
    manifest |= dict(complete=False, progress='progress-00001.safetensors')
    (folder / 'manifest.json').write_text(json.dumps(manifest))
    (folder / 'progress-00001.safetensors').write_text('')


def resume_store(folder: Path) -> None:
    """Writes the last shard of an unfinished datastore, which deletes the progress file."""
    manifest = read_manifest(folder)
    if build_datastore._problem(folder, manifest):
        build_datastore._clear(folder)
        return
    builder = build_datastore._Builder(folder, manifest)
    builder.write(None, None, True)


def index_settings():
    settings = base('retrieval').retrieval
    settings.update(index='faiss', centroids=2, code_size=2, probe=2, train_keys=40, k=3)
    return settings


@functools.cache
def _opened(folder: Path) -> Datastore:
    return Datastore(folder, None, False)


def index(folder: Path) -> None:
    store(folder)
    Faiss(Datastore(folder, None, False), index_settings())
    (path,) = folder.glob('index.*')
    path.rename(folder / 'index')


def read_index(folder: Path) -> None:
    opened = _opened(folder)
    index = object.__new__(Faiss)
    import faiss

    from longmem_jax.retrieval import faiss_file

    index._faiss, index._store, index._settings = faiss, opened, index_settings()
    index._index = index._empty()
    faiss_file.load(folder / 'index', faiss, index._index, opened.digest, len(opened))
    index.search(np.zeros((2, 4), np.float32), 3)


class _Place:
    """What a `Reader` shows of its position, on a text of 9 documents of 5 tokens."""

    def __init__(self):
        self.memory = {
            'a': jax.numpy.zeros((2, 3)),
            'count': jax.numpy.zeros((2,), jax.numpy.int32),
        }
        self.cursor = Cursor(np.zeros(2, np.int32), np.zeros(2, np.int32))
        self.ordinals = np.full((2,), -1, np.int32)
        self._corpus = [types.SimpleNamespace(tokens=range(5))] * 9

    require_place = Reader.require_place


SEEN = dict(contexts=np.full((2, 8), -1, np.int32))


def progress(folder: Path) -> None:
    place = _Place()
    place.cursor = Cursor(np.asarray([1, 1], np.int32), np.asarray([3, 0], np.int32))
    place.ordinals = np.asarray([1, 0], np.int32)
    progress_file.save_position(folder / 'progress.safetensors', place, **SEEN)


def read_progress(folder: Path) -> None:
    progress_file.go_on(folder / 'progress.safetensors', _Place(), SEEN)


@functools.cache
def _model():
    model, params = toy('transformer_xl')
    plain = model.config.to_dict() | {'segment_length': model.segment_length}
    return fresh_state(model, params, 1), plain, params


def state(folder: Path) -> None:
    fresh, plain, params = _model()
    memory_file.save(folder / 'state.safetensors', fresh, np.asarray([[1, 2]]), plain, params)


def read_state(folder: Path) -> None:
    fresh, plain, params = _model()
    memory, pending = memory_file.load(folder / 'state.safetensors', fresh, plain, params)
    assert pending.shape[0] == 1 and (pending < plain['vocab_size']).all() and (pending >= 0).all()
    for found, wanted in zip(jax.tree.leaves(memory), jax.tree.leaves(fresh), strict=True):
        assert found.shape == wanted.shape and bool(np.isfinite(found).all())


def tokenizer(kind: str, name: str, size: int) -> Case:
    def make(folder: Path) -> None:
        learn_tokenizer.learn(kind, [Document('text', TEXT.encode())], size, folder / name)

    def read(folder: Path) -> None:
        loaded = load_tokenizer(kind, folder / name)
        tokens = loaded.encode(PROBE.encode())
        assert not tokens.size or 0 <= tokens.min() <= tokens.max() < loaded.vocab_size
        loaded.decode(tokens)
        loaded.decode(np.arange(min(loaded.vocab_size, 500)))
        loaded.fingerprint()

    return Case(make, (name,), read)


def tokenizer_folder(*names: str) -> Case:
    """A folder with files of pretrained models, and its chat template."""

    def make(folder: Path) -> None:
        if 'tokenizer.json' in names:
            learn_tokenizer.learn(
                'bpe', [Document('t', TEXT.encode())], 300, folder / 'tokenizer.json'
            )
        if 'vocab.txt' in names:
            (folder / 'vocab.txt').write_text('[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\ncat\n##s\na\n##a\n')
        if 'vocab.json' in names:
            vocabulary = {chr(33 + i): i for i in range(94)} | {'\u0120': 94, 'ab': 95}
            (folder / 'vocab.json').write_text(json.dumps(vocabulary))
            (folder / 'merges.txt').write_text('#version: 0.2\na b\n')
        settings = dict(
            bos_token=dict(content='the'),
            eos_token='<|endoftext|>',
            do_lower_case=True,
            strip_accents=None,
            chat_template=[dict(name='default', template='{{ messages[0].content }}')],
        )
        if 'vocab.txt' not in names:
            settings['bos_token'] = None
        (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
        (folder / 'generation_config.json').write_text('{"eos_token_id": [2, 3]}')

    return Case(make, (*names, 'tokenizer_config.json', 'generation_config.json'), use_model)


def use_model(model: Path) -> None:
    """Reads the tokenizer of a folder or file, and its chat template."""
    loaded = load_tokenizer('tokenizers', model)
    loaded.decode(loaded.encode(PROBE.encode()))
    loaded.encode_all([PROBE])
    loaded.encode_with_places(PROBE)
    found = conventions.of_folder(model, loaded)
    chat.load_template(model, found.special).render(chat.read_messages(PROBE))
    assert all(end < loaded.vocab_size for end in found.ends)


def word(folder: Path) -> None:
    (folder / 'tokenizer.words.0.txt').write_text('a')
    about = dict(data='text', documents=3, ends='0')
    learn_tokenizer.keep_word(folder / 'tokenizer.words.0.txt', about)


def read_word(folder: Path) -> None:
    about = dict(data='text', documents=3, ends='0')
    if word := learn_tokenizer.require_whole(folder / 'tokenizer.words.0.txt'):
        learn_tokenizer.require_same_data(folder / 'tokenizer.words.0.txt', word, about)


def run(folder: Path) -> None:
    (folder / 'config.json').write_text(base().to_json())


def read_run(folder: Path) -> None:
    checks.require_runnable(saved_config(folder), 1)


def host(folder: Path) -> None:
    shutil.copytree(folder_of('qwen2'), folder, dirs_exist_ok=True)


def read_host(folder: Path) -> None:
    found = hosts.find(folder)
    for name in found.files.shapes:
        assert found.files.whole(name).shape == found.files.shapes[name]
    hosts.is_name(folder)


def gguf_host(folder: Path) -> None:
    shutil.copy(gguf_files.FOLDER / 'llama.gguf', folder / 'x.gguf')


def read_gguf_host(folder: Path) -> None:
    path = folder / 'x.gguf'
    read_host(path)
    use_model(path)


def graft(folder: Path) -> None:
    host(folder)
    graft_file_test.grafted(folder, folder / 'g.safetensors')


def read_graft(folder: Path) -> None:
    found = hosts.find(f'{folder} + {folder / "g.safetensors"}')
    for name, shape in found.files.shapes.items():
        assert found.files.whole(name).shape == shape


class _Reached(Exception):
    pass


def imported(folder: Path) -> None:
    from safetensors.numpy import save_file

    (folder / 'args.json').write_text(json.dumps(SETTINGS | dict(dropout=0.1, cutoffs=[])))
    tensors = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    save_file(tensors, folder / 'weights.safetensors')


def read_imported(folder: Path) -> None:
    class Experiment:
        config = types.SimpleNamespace(model=transformer_xl.model_config(SETTINGS))

        @property
        def abstract_state(self):
            raise _Reached

    try:
        import_checkpoint(Experiment(), folder / 'weights.safetensors', folder / 'args.json')
    except _Reached:
        schema.require(json_file.read(folder / 'args.json'), ARGUMENTS, 'args.json')


def arrays(folder: Path) -> None:
    settings = np.asarray('{"system": "none"}')
    np.savez_compressed(folder / 'case.npz', x=np.arange(99.0), config_json=settings)


def read_arrays(folder: Path) -> None:
    arrays = parity.read_arrays(folder / 'case.npz')
    assert all(array.dtype.kind != 'O' for array in arrays.values())
    json_file.parse(str(arrays.get('config_json', '{}')), 'config_json')


def texts(name: str, content: str, documents: str = 'file') -> Case:
    def make(folder: Path) -> None:
        (folder / name).write_text(content)

    def read(folder: Path) -> None:
        data = base().data
        data.path, data.documents = str(folder), documents
        source = load_source(data, 'train')
        assert all(isinstance(source[i].text, bytes) for i in range(len(source)))

    return Case(make, (name,), read)


def examples(folder: Path) -> None:
    (folder / 'x.jsonl').write_text('{"a": "1", "b": 2}\n' * 3)


def glue(name: str) -> Case:
    def read(folder: Path) -> None:
        data = superglue_test.data_of(folder, name).data
        source = superglue.SOURCE.texts(data, 'validation')
        for i in range(len(source)):
            assert source[i].text

    line = superglue_test.LINES[name]
    return Case(
        lambda folder: superglue_test.write(folder, name, line, line), (f'{name}/val.jsonl',), read
    )


def dialogues(folder: Path) -> None:
    cmu_dog_test.write(folder, train_a=cmu_dog_test.dialogue(*cmu_dog_test.SAID))


def read_dialogues(folder: Path) -> None:
    data = cmu_dog_test.config_of(folder).data
    source = cmu_dog.SOURCE.texts(data, 'train')
    for i in range(len(source)):
        assert source[i].text


SQUAD = dict(
    data=[
        dict(
            title='t',
            paragraphs=[
                dict(
                    context='The cat sat. CANNOTANSWER',
                    qas=[
                        dict(
                            question='Who?', id='1',
                            answers=[dict(text='cat', answer_start=4)],
                            orig_answer=dict(text='cat', answer_start=4),
                        )
                    ]
                    * 2,
                )
            ],
        )
    ]
)  # fmt: skip


def read_squad(folder: Path) -> None:
    for question in qa.squad(folder / 'squad.json'):
        for context in question.contexts():
            (question.text + context.text).encode()


PAIR = dict(
    UID='x', field='syntax', linguistics_term='a', sentence_good='The cat.', sentence_bad='Cat the.',
    one_prefix_method=True, two_prefix_method=False, pairID='0', simple_LM_method=True,
    lexically_identical=False,
)  # fmt: skip


def written(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


def read_relations(folder: Path) -> None:
    relations.read_file(folder / 'r.txt', ['a', 'b', 'c'])


def read_classes(folder: Path) -> None:
    classification.read_file(folder / 'c.csv', 'ag_news', 'plain')


SHARDS = tuple(f'{name}.00000.bin' for name in ('keys', 'values', 'documents', 'contexts'))
CASES = {
    'datastore': Case(store, ('manifest.json', *SHARDS, verified.NAME), read_store),
    'unfinished datastore': Case(unfinished, ('manifest.json',), resume_store),
    'FAISS index': Case(index, ('index',), read_index),
    'position': Case(progress, ('progress.safetensors',), read_progress),
    'memory': Case(state, ('state.safetensors',), read_state),
    'characters': tokenizer('characters', 'c.json', 0),
    'words': tokenizer('words', 'w.txt', 0),
    'bpe': tokenizer('bpe', 'b.json', 270),
    'sentencepiece': tokenizer('sentencepiece', 's.model', 278),
    'folder with tokenizer.json': tokenizer_folder('tokenizer.json'),
    'folder with vocab.txt': tokenizer_folder('vocab.txt'),
    'folder with merges.txt': tokenizer_folder('vocab.json', 'merges.txt'),
    'data of a vocabulary': Case(word, ('learned_from.tokenizer.words.0.json',), read_word),
    'run': Case(run, ('config.json',), read_run),
    'host': Case(
        host,
        (
            'config.json',
            'model.safetensors.index.json',
            'model-00001-of-00002.safetensors',
            'model-00002-of-00002.safetensors',
        ),
        read_host,
    ),
    'GGUF file': Case(gguf_host, ('x.gguf',), read_gguf_host),
    'graft': Case(graft, ('g.safetensors',), read_graft),
    'import': Case(imported, ('args.json', 'weights.safetensors'), read_imported),
    'npz': Case(arrays, ('case.npz',), read_arrays),
    'text': texts('train.txt', TEXT, 'line'),
    'articles': texts('train.txt', ' = A = \n\n text \n' * 9, 'wiki'),
    'JSON lines': texts('train.jsonl', '{"text": "a cat"}\n' * 5),
    'examples': Case(
        examples, ('x.jsonl',), lambda folder: read_examples(folder / 'x.jsonl', dict(a=str, b=int))
    ),
    **{name: glue(name) for name in superglue_test.LINES},
    'CMU-DoG': Case(
        dialogues, ('WikiData/Jaws.json', 'Conversations/train/a.json'), read_dialogues
    ),
    'SQuAD': Case(written('squad.json', json.dumps(SQUAD)), ('squad.json',), read_squad),
    'minimal pairs': Case(
        written('x.jsonl', (json.dumps(PAIR) + '\n') * 3),
        ('x.jsonl',),
        lambda folder: minimal_pairs.read_paradigms(str(folder)),
    ),
    'relations': Case(written('r.txt', '1\t2 3\tThe cat.\n' * 5), ('r.txt',), read_relations),
    'classes': Case(written('c.csv', '"1","A title","A text"\n' * 5), ('c.csv',), read_classes),
}
