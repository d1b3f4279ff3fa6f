"""RULER: samples of the released generator, drawn again from the seed.

Files are JSON lines, named `TASK_LENGTH_seedS.jsonl`, made with GPT-2's tokenizer. It is read from
`data/tokenizers/gpt2` (vocab.json, merges.txt) in a folder above the file or the working folder, or in
`shared` there. Other seeds than 42 and other lengths than a power of two need that name.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from longmem_jax.data.json_lines import read_examples
from longmem_jax.data.sets.ruler import source
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.data.tokenizers import Tokenizer

PLACES = ('data/tokenizers/gpt2', 'shared/data/tokenizers/gpt2')
# The beginning of the input of every task that is drawn again.
BEGINNINGS = {
    'Memorize and track the chain(s)': 'vt',
    'Below is a numbered list of words.': 'cwe',
    'Read the following coded text': 'fwe',
    'A special magic number': 'niah_single_1',
}


def knows(path: Path) -> bool:
    """Whether a file has samples of RULER."""
    if path.suffix != '.jsonl' or not path.is_file():
        return False
    with path.open('rb') as file:
        first = file.read(1 << 16)
    return all(f'"{name}":'.encode() in first for name in ('input', 'outputs'))


def tokenizer_of(path: Path) -> Tokenizer:
    """GPT-2's tokenizer."""
    above = (*path.resolve().parents, Path.cwd(), *Path.cwd().parents)
    for folder in (place / name for place in above for name in PLACES):
        if (folder / 'vocab.json').is_file():
            return load_tokenizer('tokenizers', folder)
    raise ValueError(f'{path}: no folder above it has {PLACES[0]}, the tokenizer of the samples')


def data_of(task: str, length: int, seed: int, samples: int) -> ConfigDict:
    """`config.data` of a file."""
    settings = dict(name=task, lengths=(length,), documents=1, eval_documents=samples, example=True)
    return ConfigDict(dict(source='ruler', path='', seed=seed, task=settings))


def check(path: Path) -> Iterator[tuple[str, str, str]]:
    """Prompt and answers of every sample: ours, the reference."""
    examples = read_examples(path, dict(input=str, outputs=list, length=int, answer_prefix=str))
    named = re.search(r'(?P<task>[a-z]\w*?)_(?P<length>\d{3,})_seed(?P<seed>\d+)', path.name)
    known = (task for start, task in BEGINNINGS.items() if examples[0]['input'].startswith(start))
    task = named['task'] if named and named['task'] in source.NAMES else next(known, None)
    if task is None:
        raise ValueError(f'{path}: unknown task; name it TASK_LENGTH_seedS.jsonl')
    most = max(example['length'] for example in examples)
    length = int(named['length']) if named else 1 << (most - 1).bit_length()
    data = data_of(task, length, int(named['seed']) if named else 42, len(examples))
    drawn = source.samples_of(data, 'test', tokenizer_of(path))
    for number, (sample, example) in enumerate(zip(drawn, examples, strict=True)):
        yield (
            f'{task} {number} prompt',
            sample.text + sample.prefix,
            (example['input'] + example['answer_prefix']),
        )
        yield f'{task} {number} outputs', '\n'.join(sample.outputs), '\n'.join(example['outputs'])
