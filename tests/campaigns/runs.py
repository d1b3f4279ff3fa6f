"""Small runs for the campaign of reliability: what is started, what is damaged, and what came out."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from safetensors.numpy import load_file

from longmem_jax.config.sections import add
from longmem_jax.data.documents import Document
from longmem_jax.data.learn_tokenizer import learn
from longmem_jax.hosts import export, hosts, model_fields
from tests import toys
from tests.agents.small import small_config as agent_config
from tests.commands import import_test, translate_test
from tests.commands.train_test import small_config
from tests.hosts.commands import blimp_test, classify_test, export_test
from tests.lifelong.small import small_config as lifelong_config

WORDS = ('alpha', 'beta', 'gamma', 'delta')
PROMPT = 'alpha beta gamma delta ' * 8
HOST = dict(
    model_type='gpt2', vocab_size=300, n_layer=2, n_embd=16, n_head=2, n_positions=32,
    activation_function='gelu_new',
)  # fmt: skip
GOLDENS = Path(__file__).parents[1] / 'goldens'
# What a run is not judged by: events for TensorBoard, what was damaged before, times of files.
UNREAD = ('tensorboard', 'profile', 'checkpoints-broken', 'verified.json')
JUDGED = ('train', 'validation', 'test', 'test_reset')  # groups of metrics.jsonl


def digest(value: Any) -> str:
    """A short checksum of bytes, of an array, or of a pytree of arrays and keys."""
    if not isinstance(value, bytes):
        leaves = jax.tree_util.tree_leaves_with_path(jax.tree.map(_numbers, value))
        parts = [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in leaves]
        head = [(name, str(leaf.dtype), leaf.shape) for name, leaf in parts]
        value = repr(head).encode() + b''.join(leaf.tobytes() for _, leaf in parts)
    return hashlib.sha256(value).hexdigest()[:16]


def _numbers(leaf: Any) -> Any:
    is_key = jax.dtypes.issubdtype(getattr(leaf, 'dtype', np.float32), jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def write_config(config: Any, workdir: Path) -> None:
    """What `--workdir=WORKDIR` alone needs."""
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / 'config.json').write_text(config.to_json(indent=1) + '\n')


def make(folder: Path, run: Callable[[list[str]], None]) -> None:
    """Makes the runs in a folder, unless it has them.

    lm         a language model with a tokenizer of its own; its gate, floors, and neighbours
    short      the same of nine steps
    store      its datastore with an index
    tokens     its texts as tokens
    book       a memory of it
    lifelong   a lifelong learner; its texts are in `sets`
    agent      an agent
    translator a model that translates; its texts are in `pairs`
    classifier a classifier of the encoder in `bert`; its examples are in `RTE`
    hosted     a run that began with a host
    imported   the configuration of the weights in `theirs`
    blimp      minimal pairs
    host       a Hugging Face folder
    texts      the text of `lm`

    Args:
      folder: where.
      run: runs a command, which must succeed.
    """
    if (folder / 'done').exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    random = np.random.default_rng(0)
    for split, count in (('train', 6), ('validation', 3), ('test', 3)):
        (folder / 'texts' / split).mkdir(parents=True)
        for i in range(count):
            text = ' '.join(random.choice(WORDS, size=80 + 40 * i))
            (folder / 'texts' / split / f'{i}.txt').write_text(text)
    (folder / 'prompt.txt').write_text(PROMPT)
    for name in ('sets', 'pairs', 'theirs', 'blimp'):
        (folder / name).mkdir()
    model = model_fields.model_of(HOST, 'config.json')
    export.save(folder / 'host', model, toys.parameters(hosts.make(model, 8)))
    learn('bpe', [Document('text', PROMPT.encode())], 270, folder / 'host/tokenizer.json')
    shutil.copytree(GOLDENS / 'bert/hf', folder / 'bert')
    (folder / 'bert/vocab.txt').write_text('\n'.join(classify_test.WORDS))
    for name in ('words', 'order'):
        blimp_test.paradigm(folder / 'blimp', name, 'syntax', 'alpha beta', 'beta zz alpha')
    for name, config in _configs(folder).items():
        write_config(config, folder / name)
        if name != 'imported':
            run([f'--workdir={folder / name}'])
    lm = f'--workdir={folder / "lm"}'
    run([lm, '--mode=build_datastore'])
    run([lm, '--mode=train_spalm'])
    run([lm, '--mode=floors'])
    run([lm, '--mode=tokenize', f'--config.data.tokenized={folder / "tokens"}'])
    run([lm, '--mode=generate', '--prompt=@' + str(folder / 'prompt.txt'), '--length=0',
         f'--save_state={folder / "book"}'])  # fmt: skip
    (folder / 'done').touch()


def _configs(folder: Path) -> dict[str, Any]:
    """The configurations of the runs; writes the data of some."""
    lm = small_config(folder / 'texts')
    lm.data.tokenizer.update(kind='bpe', size=270)
    lm.model.vocab_size = 272
    lm.train.num_steps, lm.checkpoint.every = 40, 4
    lm.train.evaluate_every = 8
    add(lm, 'retrieval')
    lm.retrieval.update(
        datastore=str(folder / 'store'), k=3, tune_tokens=100, shard_tokens=700, dtype='float32',
        block_size=64, report_tokens=3,
    )  # fmt: skip
    lm.retrieval.spalm.update(k=3, num_steps=12, frozen=True)
    short = lm.copy_and_resolve_references()
    short.train.num_steps, short.checkpoint.every = 9, 3
    agent = agent_config()
    agent.train.num_steps, agent.checkpoint.every = 6, 2
    translate_test.write_pairs(folder / 'pairs')
    translator = translate_test.small_config(folder / 'pairs')
    translator.train.num_steps, translator.checkpoint.every = 6, 2
    translator.train.evaluate_every = 3
    classifier = classify_test.config_of(folder / 'bert', classify_test.write_data(folder), 4)
    classifier.checkpoint.every = 2
    host = str(folder / 'host')
    hosted = export_test.config_of(folder / 'texts', host, start_from=host)
    hosted.data.tokenizer.update(kind='tokenizers', path=host)
    _, theirs = import_test.write_golden(folder / 'theirs')
    imported = import_test.config_of(theirs, folder / 'theirs', 6)
    return dict(
        lm=lm, short=short, lifelong=lifelong_config(folder / 'sets', 'method=replay'), agent=agent,
        translator=translator, classifier=classifier, hosted=hosted, imported=imported,
    )  # fmt: skip


def _flat(value: Any, where: str = '') -> dict[str, Any]:
    """The leaves of JSON by path."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for name, part in parts for k, v in _flat(part, f'{where}/{name}').items()}
    return {where: value}


def _metrics(path: Path) -> dict[str, Any]:
    """Every value of every judged line; a second line of a group and step has a name of its own."""
    found, count = {}, {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row['group'] in JUDGED:
            key = f'{path.name}/{row["group"]}/{row["step"]}'
            count[key] = count.get(key, 0) + 1
            found |= _flat(row, key if count[key] == 1 else f'{key} again')
    return found


def _newest_checkpoint(folder: Path) -> dict[str, Any]:
    """The numbers of the newest checkpoint, as it is on disk."""
    step = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    name = f'{folder.parent.name}/checkpoints'
    try:
        state = ocp.StandardCheckpointer().restore(folder.resolve() / str(step) / 'state')
    except Exception as error:  # the campaign goes on, and says so
        return {name: f'{step} cannot be restored: {str(error)[:200]}'}
    return {name: f'{step} {digest(state)}'}


def outcome(folder: Path) -> dict[str, Any]:
    """What is in a folder, by name: numbers of JSON, checksums of arrays and of other files."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob('*')):
        name = str(path.relative_to(folder))
        if path.name == 'checkpoints' and path.is_dir():
            found |= _newest_checkpoint(path)
        inside = {*path.relative_to(folder).parts}
        # Names that nothing reads; they stay where a disk does not let them be deleted.
        if any(part.startswith('.') for part in inside) or path.name.endswith('.partial'):
            continue
        if inside & {*UNREAD, 'checkpoints'} or not path.is_file() or path.name.startswith('.'):
            continue
        if path.name == 'metrics.jsonl':
            found |= {f'{name}: {k}': v for k, v in _metrics(path).items()}
        elif path.suffix == '.json':
            found |= {f'{name}: {k}': v for k, v in _flat(json.loads(path.read_text())).items()}
        elif path.suffix == '.safetensors' or path.name == 'book':
            found[name] = digest(load_file(path))
        elif path.suffix == '.npz':
            with np.load(path) as file:
                found[name] = digest(dict(file))
        elif path.suffix not in ('.png', '.gif', '.html'):
            found[name] = digest(path.read_bytes())
    return found
