"""`--mode=list`: nothing that a command line can name is missing, and everything has a meaning."""

import subprocess
import sys
from pathlib import Path

import pytest

from configs import quickstart
from longmem_jax.commands import entry, listing
from longmem_jax.config import variants
from longmem_jax.config.base import base
from longmem_jax.config.meanings import meanings
from longmem_jax.config.recipes import recipes
from longmem_jax.config.sections import sections
from longmem_jax.errors import UsageError
from longmem_jax.memory.registry import LAYERS

CONFIGS = Path(__file__).parents[2] / 'configs'


def test_every_field_has_a_meaning():
    known = meanings()

    def paths(section, prefix):
        for name, value in section.items():
            yield f'{prefix}{name}'
            if isinstance(value, dict):
                yield from paths(value, f'{prefix}{name}.')

    wanted = [path for path in paths(base(*sections()).to_dict(), '') if path.count('.')]
    wanted += [
        f'model.{name}.{field}' for name, entry in LAYERS.items() for field in entry.fields()
    ]
    assert not [path for path in wanted if not known.get(path)], 'a field without a comment'
    assert known['train.log_every'] == 'steps between lines of metrics; 0 = only at the end'
    assert known['data.task'] == 'fields of a task, or of a set'
    assert known['model.lora.rank'].endswith('0 = none') and 'LoRA' in known['model.lora']
    assert known['model.rotary_bands'].startswith("'llama3', 'yarn': turns")
    assert known['model.transformer_xl.memory_length'].startswith('hidden vectors kept per layer')
    assert known['model.memorizing.memory_length'].startswith('keys kept of the last tokens')
    assert known['model.memformer.normalized'].startswith('slots and tokens have a mean square')


def test_configs_are_listed_with_their_variants():
    listed = {name: (about, names) for name, about, names in listing.configs()}
    assert set(listed) == {file.stem for file in CONFIGS.glob('[a-z]*.py')}
    assert all(about and names for about, names in listed.values())
    assert listed['quickstart'][1] == ('long', 'tiny', 'memory=NAME')
    assert 'size=VALUE' in listed['memorizing_pg19'][1]
    assert variants.accepted(lambda: None) == ()


def test_memories_are_listed():
    listed = dict(listing.memories())
    assert set(listed) == set(recipes()) and all(listed.values())
    assert "Here gate = 'head'," in listed['gated_delta_net'], 'variants of a layer are told apart'
    assert 'Here attention = transformer_xl.' in listed['product_key']
    assert 'Here attention = local.' in listed['product_key_short']
    assert 'Here' not in listed['infini'], 'a layer with one name has nothing to tell apart'


def test_the_fields_of_a_config_are_listed_with_its_values():
    lines = list(listing.fields(quickstart.get_config('tiny')))
    assert '  train.num_steps = 20  # training steps of the whole run' in lines
    assert any(
        line.startswith("  model.attention = ('transformer_xl', 'transformer_xl')")
        for line in lines
    )
    assert max(map(len, lines)) <= listing.WIDTH


@pytest.mark.parametrize(
    'given, near',
    [
        ('configs/quickstrat.py', "did you mean 'configs/quickstart.py'?"),
        ('quickstrat', "did you mean 'quickstart'?"),
        (
            'configs/expire_span.py',
            "'configs/expire_span_pg19.py' or 'configs/expire_span_enwik8.py'",
        ),
        ('zzzz', 'there is no file or name zzzz; a config is a file'),
    ],
)
def test_a_mistyped_config_names_the_near_ones(given, near, monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)
    with pytest.raises(UsageError) as caught:
        entry._config_file([f'--config={given}:tiny'])
    assert near in str(caught.value) and '\n' not in str(caught.value)


def test_a_reader_that_has_seen_enough_ends_the_list_quietly():
    """`longmem --mode=list | head`: no traceback, and the code of programs that SIGPIPE ends."""
    command = [sys.executable, '-m', 'longmem_jax.main', '--mode=list']
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == entry.BROKEN_PIPE and not error, error
