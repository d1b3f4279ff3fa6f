r"""Learns a vocabulary from a corpus, before a training run or on its own.

python -m longmem_jax.commands.train_tokenizer --config=configs/pg19.py --config.data.path=PG19 \
    --kind=bpe --size=32000 --output=pg19.json
"""

from pathlib import Path

from absl import flags

from longmem_jax.commands import entry
from longmem_jax.config.base import base
from longmem_jax.data.learn_tokenizer import LEARNT, learn
from longmem_jax.data.load import load_source
from longmem_jax.data.warnings import warnings_of
from longmem_jax.errors import UsageError

if __name__ == '__main__':
    _CONFIG = entry.define_config()
    _PATH = flags.DEFINE_string('path', None, 'A text to use instead of --config: folder or file.')
    _KIND = flags.DEFINE_enum('kind', 'bpe', LEARNT, 'Kind of tokenizer.')
    _SIZE = flags.DEFINE_integer('size', 32_000, 'Vocabulary size; 0 = everything that occurs.')
    _OUTPUT = flags.DEFINE_string('output', None, 'File to write.')


def _learn() -> None:
    if (_CONFIG.value is None) == (_PATH.value is None) or not _OUTPUT.value:
        raise UsageError(
            '--output= and one of --config= and --path= (where the data is) are needed.'
        )
    data = base().data if _CONFIG.value is None else _CONFIG.value.data
    if _PATH.value is not None:
        data.source, data.path = 'text', _PATH.value
    for text in warnings_of(data):
        print(f'Warning: {text}.')
    source = load_source(data, 'train')
    learn(_KIND.value, source, _SIZE.value, Path(_OUTPUT.value))
    print(f'{_KIND.value} vocabulary of {len(source)} documents: {_OUTPUT.value}')


if __name__ == '__main__':
    entry.run(_learn)
