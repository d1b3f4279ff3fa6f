"""The directives `memory-facts` and `layers`: what a memory and a layer have, as the code says.

```{memory-facts} infini
What is shown where the page is not built.
```

writes a table of the fields of `config.model.infini` with the paper's values and their meaning, and one
of the state that a layer carries from segment to segment. `layers` writes a table of all layers, one of
the settings that layers may read, and the reference of layers that have no page.
"""

import inspect
from pathlib import Path

import jax
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import longmem_jax
from longmem_jax import named, standalone
from longmem_jax.config.meanings import meanings
from longmem_jax.memory.alone import settings_read
from longmem_jax.memory.registry import LAYERS

SIZES = dict(d_model=512, num_heads=8, segment_length=256)  # of the layer whose state is shown
IN_WORDS = '8 heads of 64 in segments of 256'
PAGES = Path(__file__).with_name('memories')
# Settings of every layer that no section of a config has.
TOLD = {
    'segment_length': 'positions of a segment at most',
    'token_std': 'root mean square of the vectors of tokens at the start; 0 = `init_std`',
}


def settings_table(name: str) -> list[str]:
    """Fields of the sub-config, a line each."""
    told = meanings()
    lines = ['| field | default | meaning |', '|---|---|---|']
    for field, value in LAYERS[name].defaults().items():
        lines.append(_line(field, f'`{value!r}`', told[f'model.{name}.{field}']))
    return lines


def _line(name: str, value: str, meaning: str) -> str:
    return f'| `{name}` | {value} | {meaning.replace("|", chr(92) + "|")} |'


def _page_of(name: str) -> str:
    """The name of the page that has the facts of a memory, or is about it; '' = none."""
    told = '```{memory-facts} ' + name + '\n'
    pages = (path.stem for path in sorted(PAGES.glob('*.md')) if told in path.read_text())
    return next(pages, name if (PAGES / f'{name}.md').exists() else '')


def layers_tables() -> list[str]:
    """All layers by the name of their class, the settings of every layer, and fields without a page."""
    told = meanings()
    classes = sorted(named.class_names().items())
    lines, apart = ['| class | memory | what it is |', '|---|---|---|'], []
    for label, name in classes:
        page = _page_of(name)
        if not page:
            entry = '\n'.join(reference(name)).replace('../api.md', '')
            apart += ['', *entry.split('\n'), '', *settings_table(name)]
        memory = f'[{name}](memories/{page}.md)' if page else name
        lines.append(_line(label, memory, told[f'model.{name}']))
    lines += [
        '',
        '### Settings of layers',
        '',
        'Settings, by name. Every layer takes `dropout` and `dtype`; its page lists what else it reads.',
        'A value that it would not read is refused:',
        '',
    ]
    lines += ['| setting | default | meaning |', '|---|---|---|']
    required = dict.fromkeys(standalone.REQUIRED, 'required')
    for name, value in (required | {'head_dim': None} | standalone.OF_MODEL).items():
        default = value if name in required else f'`{value!r}`'
        lines.append(_line(name, default, TOLD.get(name) or told[f'model.{name}']))
    return lines + apart


def reference(name: str) -> list[str]:
    """The entry of a layer: its signature, an example that runs, the settings that it reads."""
    label = LAYERS[name].layer.module.__name__
    layer = longmem_jax.make_layer(name, **SIZES)
    told = f'{inspect.signature(named.by_name(name))}'
    told = told.replace('longmem_jax.standalone.', '').replace("'DTypeLike'", 'DTypeLike')
    reads = sorted((settings_read(layer) & {*standalone.OF_MODEL}) - {*standalone.TAKEN})
    sizes = ', '.join(f'{size}={value}' for size, value in SIZES.items())
    return [
        f'````{{py:function}} longmem_jax.{label}{told}', '',
        'The memory as one layer of a model of yours:', '',
        '```python',
        'import jax',
        'import longmem_jax', '',
        f'layer = longmem_jax.{label}({sizes})',
        'x = jax.numpy.ones((2, 256, 512))  # [batch, length, d_model]',
        'state = layer.start(batch_size=2)',
        'variables = layer.init(jax.random.key(0), x, state)',
        'y, state, aux = layer.apply(variables, x, state)',
        '```', '',
        'With its defaults it also reads these [settings](../api.md#settings-of-layers): '
        f'{", ".join(f"`{each}`" for each in reads)}.',
        'Unknown names, wrong values and settings that it does not read raise',
        '`longmem_jax.errors.UsageError`; wrong shapes of `x` or `state` raise `ValueError`.',
        '````',
    ]  # fmt: skip


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


class Facts(SphinxDirective):
    """A directive that writes lines of Markdown."""

    def run(self) -> list[nodes.Node]:
        """What the lines are."""
        holder = nodes.container()
        text = StringList(self.lines(), 'memory_facts')
        self.state.nested_parse(text, self.content_offset, holder)
        return holder.children

    def lines(self) -> list[str]:
        """The tables of all layers."""
        return layers_tables()


class MemoryFacts(Facts):
    """See the module."""

    required_arguments = 1
    has_content = True  # what those read who see the page unbuilt

    def lines(self) -> list[str]:
        """The entry of the layer, and the two tables."""
        name, fields = self.arguments[0], ['It has no fields.']
        if LAYERS[name].fields():
            told = f'These fields, also of `config.model.{name}`:'
            fields = [told, '', *settings_table(name)]
        return [
            *reference(name), '',
            *fields, '',
            'What is carried from segment to segment:', '', *state_table(name),
        ]  # fmt: skip


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive('memory-facts', MemoryFacts)
    app.add_directive('layers', Facts)
    return {'parallel_read_safe': True}
