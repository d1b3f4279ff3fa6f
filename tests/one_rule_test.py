"""The table of `docs/one_rule.md`: its bytes are those of the states."""

import re
from pathlib import Path

import jax
import pytest

from longmem_jax import make_layer
from longmem_jax.config.base import base
from longmem_jax.config.recipes import recipes, scale_of

PAGE = Path(__file__).parent.parent / 'docs/one_rule.md'
ROWS = re.findall(r'^\| `(\w+)`(?:, [^|]*)? \|.*\| ([\d,]+) \| [^|]* \|$', PAGE.read_text(), re.M)


@pytest.mark.parametrize('name, said', ROWS)
def test_bytes_of_a_state(name, said):
    sizes, config = dict(d_model=256, num_heads=4, head_dim=64), base()
    config.model.update(sizes | dict(num_layers=1))
    config.train.segment_length = config.evaluate.segment_length = 128
    main, fields = next(iter(recipes()[name](scale_of(config)).sections.items()))
    layer = make_layer(main, **sizes, segment_length=128, **fields)
    leaves = jax.tree.leaves(jax.eval_shape(lambda: layer.start(1)))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert said == f'{size:,}', f'{PAGE.name}: write {size:,} as the bytes of {name}'


def test_every_row_is_found():
    assert len(ROWS) == len(re.findall(r'^\| `\w', PAGE.read_text(), re.M)) > 10
