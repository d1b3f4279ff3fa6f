"""What feeds a model: lanes put together, subwords, and the time until the first batch.

The text is Python's standard library, as books of half a million bytes.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longmem_jax.commands import tokenize_documents
from longmem_jax.config.base import base
from longmem_jax.data import learn_tokenizer, load
from longmem_jax.data.corpus import Corpus
from longmem_jax.data.documents import Document
from longmem_jax.data.lanes import LaneDataset, batches
from longmem_jax.data.stdlib import StandardLibrary
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.data.tokenizers import Bytes
from longmem_jax.devices import sharding
from longmem_jax.experiment import Experiment

SHAPES = ((64, 512), (16, 2048))
LANES, BOOK, PIECES = 16, 500_000, 8192
TOY_LANES, TOY_BOOK, TOY_PIECES = 2, 3000, 300
Rows = list[list[str]]


def clocked(call: Callable[[], Any]) -> tuple[Any, str, float]:
    """What `call` returns, its seconds as text with those of all threads, and the latter."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return found, f'{wall:.2f} s ({cpu:.2f})', cpu


def books(number: int, length: int) -> list[Document]:
    """Texts of `length` bytes."""
    library, text, found = StandardLibrary('train'), b'', []
    for index in range(len(library)):
        text += library[index].text
        while len(text) >= length and len(found) < number:
            found.append(Document(f'{len(found):03}.txt', text[:length]))
            text = text[length:]
        if len(found) == number:
            return found
    raise SystemExit(f'The standard library has no {number} books of {length:,} bytes.')


def assembled(documents: Sequence[Document], lanes: int, length: int, repeats: int) -> list[str]:
    """Batches of bytes that are in memory, without the thread that prefetches them."""
    dataset = LaneDataset(
        Corpus(documents, Bytes()), range(lanes), lanes, length, 1, 0, True, None, None
    )
    iterator = iter(dataset)
    next(iterator)  # opens the documents
    _, shown, cpu = clocked(lambda: [next(iterator) for _ in range(repeats)])
    rate = f'{repeats * lanes * length / cpu / 1e6:.0f} M tokens per CPU second'
    return [f'{repeats} batches of {lanes} x {length:,}', shown, rate]


def subwords(documents: Sequence[Document], folder: Path, pieces: int) -> tuple[Rows, Path]:
    """Learning a BPE and using it; and its file."""
    path = folder / 'pieces.json'
    _, learning, _ = clocked(lambda: learn_tokenizer.learn('bpe', documents, pieces, path))
    tokenizer = load_tokenizer('bpe', path)
    tokens, shown, cpu = clocked(
        lambda: sum(len(tokenizer.encode(document.text)) for document in documents)
    )
    size = sum(len(document.text) for document in documents)
    rate = f'{tokens / cpu / 1e6:.2f} M tokens, {size / cpu / 1e6:.2f} MB per CPU second'
    return [[f'BPE of {pieces:,} learned', learning, ''], [f'{size:,} bytes', shown, rate]], path


def first_batches(
    documents: Sequence[Document], folder: Path, pieces: Path, lanes: int, workers: int
) -> Rows:
    """Until the first batch, from texts and from tokens that `workers` (0 = one per core) wrote."""
    texts = folder / 'texts' / 'train'
    texts.mkdir(parents=True)
    for document in documents:
        (texts / document.name).write_bytes(document.text)
    config = base()
    config.data.update(dict(source='text', path=str(texts.parent)))
    config.data.tokenizer = dict(kind='bpe', path=str(pieces), size=0)
    config.model.vocab_size = PIECES

    def first() -> Any:
        corpus = load.load(config.data, 'train', load.make_tokenizer(config.data, None))
        read = batches(
            corpus, lanes=range(lanes), num_lanes=lanes, segment_length=512,
            segments_per_batch=1, seed=0, shuffle=True, num_epochs=None, cursor=None,
        )  # fmt: skip
        return next(read)

    rows = [[f'first batch of {lanes} lanes, from texts', clocked(first)[1], '']]
    config.data.tokenized = str(folder / 'tokens')
    experiment = Experiment(config, None, sharding.make_mesh(config.mesh.to_dict()))
    _, shown, _ = clocked(lambda: tokenize_documents.tokenize(experiment, 'train', workers=workers))
    rows.append(['`--mode=tokenize`, all cores', shown.split(' (')[0], 'with new processes'])
    rows.append([f'first batch of {lanes} lanes, from tokens', clocked(first)[1], ''])
    return rows


def measure(memories: Sequence[str], rounds: int, toy: bool) -> tuple[list[str], Rows]:
    """The table; no model is used."""
    del memories
    lanes, length = (TOY_LANES, TOY_BOOK) if toy else (LANES, BOOK)
    documents = books(lanes, length)
    shapes = [(2, 16)] if toy else SHAPES
    rows = [assembled(documents, *shape, repeats=rounds) for shape in shapes]
    with tempfile.TemporaryDirectory() as name:
        found, path = subwords(documents, Path(name), TOY_PIECES if toy else PIECES)
        rows += found + first_batches(documents, Path(name), path, lanes, int(toy))
    return ['host', 'wall (CPU)', 'rate'], rows
