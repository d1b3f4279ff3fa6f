"""The directive `memory-facts`: settings and state of a memory, as the code has them.

```{memory-facts} infini
```

writes a table of the fields of `config.model.infini` with the paper's values and their meaning, and one
of the state that a layer carries from segment to segment.
"""

import jax
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import longmem_jax
from longmem_jax.config.meanings import meanings
from longmem_jax.memory.registry import LAYERS

SIZES = dict(d_model=512, num_heads=8, segment_length=256)  # of the layer whose state is shown
IN_WORDS = '8 heads of 64 in segments of 256'


def settings_table(name: str) -> list[str]:
    """Fields of the sub-config, a line each."""
    told = meanings()
    lines = ['| field | default | meaning |', '|---|---|---|']
    for field, value in LAYERS[name].defaults().items():
        meaning = told[f'model.{name}.{field}'].replace('|', '\\|')
        lines.append(f'| `{field}` | `{value!r}` | {meaning} |')
    return lines


def state_table(name: str) -> list[str]:
    """Leaves of the state of one layer and one lane, in float32."""
    layer = longmem_jax.make_layer(name, **SIZES)
    state = jax.eval_shape(lambda: layer.start(1))
    leaves = jax.tree_util.tree_leaves_with_path(state)
    if not leaves:
        return ['It has no state.']
    size = sum(leaf.size * leaf.dtype.itemsize for _, leaf in leaves)
    lines = ['| leaf | shape per lane | dtype |', '|---|---|---|']
    for path, leaf in leaves:
        shape = ' x '.join(map(str, leaf.shape[1:])) or 'a number'
        place = jax.tree_util.keystr(path, simple=True, separator='.')
        lines.append(f'| `{place}` | {shape} | {leaf.dtype} |')
    told = f'{size:,.0f} bytes per lane and layer with the values above and {IN_WORDS}.'
    return [*lines, '', told]


class MemoryFacts(SphinxDirective):
    """See the module."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The two tables."""
        name = self.arguments[0]
        text = [
            f'The fields of `config.model.{name}`:', '', *settings_table(name), '',
            'What is carried from segment to segment:', '', *state_table(name),
        ]  # fmt: skip
        holder = nodes.container()
        self.state.nested_parse(StringList(text, 'memory_facts'), self.content_offset, holder)
        return holder.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive('memory-facts', MemoryFacts)
    return {'parallel_read_safe': True}
