"""Pretrains a small encoder on the texts of a stream; see `lifelong.pretrain`.

python -m longmem_jax.commands.pretrain_encoder --source=classification --path=DIR --output=ENCODER \
    --set=rows=4000 --set=num_steps=2000 --set=hidden_size=128

`--set=NAME=VALUE` changes a setting of the data (as in the stream, so that the same rows are left out of
pretraining as of training), of pretraining, or an attribute of BERT's `config.json`.
"""

import ast
from typing import Any

from absl import flags

from longmem_jax.commands import entry
from longmem_jax.errors import UsageError, unknown
from longmem_jax.lifelong import encoders, pretrain
from longmem_jax.lifelong.data import classification, qa, relations

SOURCES = {'classification': classification, 'qa': qa, 'relations': relations}
SIZES = ('hidden_size', 'num_hidden_layers', 'num_attention_heads', 'intermediate_size')

if __name__ == '__main__':
    _SOURCE = flags.DEFINE_enum('source', 'classification', tuple(SOURCES), 'What the texts are.')
    _PATH = flags.DEFINE_string('path', '', 'Folder of the data.')
    _TASKS = flags.DEFINE_list('tasks', [], 'Only these tasks; empty = all.')
    _OUTPUT = flags.DEFINE_string('output', '', 'Folder to write.')
    _SET = flags.DEFINE_multi_string('set', [], 'NAME=VALUE of a setting.')


def changed(given: list[str], *sections: dict[str, Any]) -> list[dict[str, Any]]:
    """Copies of sections of settings, with `NAME=VALUE` put into every one that has the name.

    Raises:
      UsageError: not of this form, or no section has the name.
    """
    sections = [dict(section) for section in sections]
    for change in given:
        name, equals, text = change.partition('=')
        holders = [section for section in sections if name in section]
        if not equals or not holders:
            names = sorted({name for section in sections for name in section})
            raise UsageError(f'--set={change}: {unknown("NAME", name, names)}.')
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        for section in holders:
            section[name] = value
    return sections


def run(source: str, path: str, tasks: list[str], output: str, given: list[str]) -> list[str]:
    """Reads the data, pretrains, writes the folder; returns the names of its files.

    Raises:
      UsageError: no folder to write, or as the data and `pretrain.pretrain`.
    """
    if not output:
        raise UsageError('--output= is missing: the folder to write.')
    data = SOURCES[source]
    settings, training, sizes = changed(
        given, data.SETTINGS, pretrain.SETTINGS, {name: encoders.SMALL[name] for name in SIZES}
    )
    if source == 'relations' and tasks:
        raise UsageError('--tasks: relations are clustered later; leave it out.')
    names = (tuple(tasks),) if tasks else ()
    texts = data.training_texts(data.read(path, settings, *names))
    return pretrain.pretrain(texts, output, training, dict(encoders.SMALL) | sizes)


def _main() -> None:
    names = run(_SOURCE.value, _PATH.value, _TASKS.value, _OUTPUT.value, _SET.value)
    print(f'{_OUTPUT.value}: {", ".join(names)}')


if __name__ == '__main__':
    entry.run(_main)
