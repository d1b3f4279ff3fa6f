"""The table of `docs/one_rule.md`: its bytes are those of the states.

A row begins with the name of a recipe, and may give fields that it has otherwise, each in marks of its
own: `gla`, `gate='head'` (what is published under this name).
"""

import ast
import re
from pathlib import Path

import jax
import pytest

from longmem_jax import make_layer
from longmem_jax.config.base import base
from longmem_jax.config.recipes import recipes, scale_of, section

PAGE = Path(__file__).parent.parent / 'docs/one_rule.md'
TABLE = re.search(r'^\| `:memory=` .*\n\|[-|]+\|\n((?:\|.*\n)+)', PAGE.read_text(), re.M)[1]
ROW = re.compile(
    r'\| `(\w+)`((?:, `\w+=[^`|]+`)*)(?: \([^`|]+\))? \|(?:[^|]+\|){6} ([\d,]+) \| [^|]+ \|'
)
FIELD = re.compile(r'`(\w+)=([^`]+)`')


def read(line):
    """Name, fields and bytes of a row."""
    found = ROW.fullmatch(line)
    assert found, f'{PAGE.name}: not a name, fields, six cells, bytes and golden: {line}'
    fields = {field: ast.literal_eval(value) for field, value in FIELD.findall(found[2])}
    return found[1], fields, found[3]


ROWS = [read(line) for line in TABLE.splitlines()]


@pytest.mark.parametrize(
    'name, fields, said', ROWS, ids=[' '.join((name, *fields)) for name, fields, _ in ROWS]
)
def test_bytes_of_a_state(name, fields, said):
    sizes, config = dict(d_model=256, num_heads=4, head_dim=64), base()
    config.model.update(sizes | dict(num_layers=1))
    config.train.segment_length = config.evaluate.segment_length = 128
    main, given = next(iter(recipes()[name](scale_of(config)).sections.items()))
    known = section(main, **given)
    assert all(known[field] != value for field, value in fields.items()), 'says what the recipe has'
    layer = make_layer(main, **sizes, segment_length=128, **(given | fields))
    leaves = jax.tree.leaves(jax.eval_shape(lambda: layer.start(1)))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert said == f'{size:,}', f'{PAGE.name}: write {size:,} as the bytes of {name} {fields}'


def test_rows_are_many_and_different():
    assert len({(name, *sorted(fields.items())) for name, fields, _ in ROWS}) == len(ROWS) > 10
