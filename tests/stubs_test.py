"""The types of the public names are those of the layers."""

import subprocess
import sys

import pytest

import longmem_jax
from tests.stubs import FILE, stubs

GOOD = """
import jax
from longmem_jax import InfiniAttention, Layer, load
layer: Layer = InfiniAttention(d_model=8, num_heads=2, segment_length=4, num_kv_heads=1)
steps: int = load('run').params

def read(variables: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    y, state, aux = layer.apply(variables, x, layer.start(batch_size=2))
    return y + aux.losses['sum']
"""


def test_the_file_is_that_of_todays_layers():
    assert FILE.read_text() == stubs(), 'run: python -m tests.stubs'


def test_every_public_name_has_a_type():
    text = FILE.read_text()
    for name in longmem_jax.__all__:
        assert f'def {name}(' in text or f' as {name}\n' in text, f'{name}: see tests/stubs.py'


@pytest.mark.slow
def test_a_misspelled_field_is_found_by_a_type_checker(tmp_path):
    """And nothing is said of one that is right."""

    def check(code):
        # A file of its own: two of one size and second are the same to the checker's cache.
        file = tmp_path / f'user_{len(list(tmp_path.glob("*.py")))}.py'
        file.write_text(code)
        command = [sys.executable, '-m', 'mypy', '--ignore-missing-imports']
        command += ['--follow-imports=silent', f'--cache-dir={tmp_path}', str(file)]
        return subprocess.run(command, text=True, capture_output=True).stdout

    assert 'Success' in check(GOOD)
    found = check(GOOD.replace('segment_length', 'segmnt_length'))
    assert 'Unexpected keyword argument "segmnt_length"' in found
    assert 'keyword argument "num_kv_hads"' in check(GOOD.replace('num_kv_heads', 'num_kv_hads'))
    assert 'incompatible type "str"' in check(GOOD.replace('d_model=8', "d_model='8'"))
    assert '"Aux" has no attribute "loss"' in check(GOOD.replace('aux.losses', 'aux.loss'))
    made = check('import longmem_jax\nreveal_type(longmem_jax.InfiniAttention)')
    assert 'rotate_memory: bool =, ' in made and made.count('-> longmem_jax.standalone.Layer') == 1
