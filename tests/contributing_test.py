"""The memory that CONTRIBUTING shows keeps the promises of the suite."""

import re
import types
from pathlib import Path

import pytest

from longmem_jax import registry
from longmem_jax.testing import conformance, programs

TEXT = (Path(__file__).parent.parent / 'CONTRIBUTING.md').read_text()
PROMISES = (
    'causal', 'rows_apart', 'padding', 'decode', 'gradients', 'start_anywhere', 'parameters_used',
    'sums_are_float32', 'reports', 'chunks_are_steps', 'starts_inside',
)  # fmt: skip
SLOW = ('gradients', 'starts_inside')  # as for other recurrent memories, see conformance_test.py


@pytest.fixture(scope='module')
def shown():
    """The entry of the section "A recurrent memory", registered."""
    section = TEXT.partition('### A recurrent memory')[2]
    module = types.ModuleType('shown')
    exec(re.search(r'```python\n(.*?)```', section, re.DOTALL)[1], vars(module))
    entry = module.ENTRY
    registry.register('memory', entry.name, entry)
    yield entry.name
    registry.unregister('memory', entry.name)
    programs.entry.cache_clear()


@pytest.mark.parametrize(
    'promise', [pytest.param(p, marks=pytest.mark.slow if p in SLOW else ()) for p in PROMISES]
)
def test_the_memory_of_the_text_keeps_promises(shown, promise):
    conformance.check(shown, promise)
