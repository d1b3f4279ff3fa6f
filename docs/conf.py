"""Sphinx: `pip install -e '.[docs]' && sphinx-build -W docs OUT`; all examples run while it builds.

With `-t short` long trainings take few steps, and their pages say so: every cell still runs, in a
fraction of the time; programs are compiled as the tests compile theirs. `.ci/run` builds these pages.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import longmem_jax

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import address  # noqa: E402  (beside this file)

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if tags.has('short'):  # noqa: F821  (Sphinx defines it)
    sys.path.insert(0, str(HERE.parent))
    from tests.processes import environment

    programs = tempfile.TemporaryDirectory()  # of this build; it goes away with it
    os.environ.update(environment(cache=programs.name))

project = 'longmem_jax'
author = 'the authors of longmem_jax'
version = release = longmem_jax.__version__
exclude_patterns = ['_build', '**.ipynb_checkpoints', 'notebooks/*.ipynb']  # made of the .md
extensions = [
    'memory_facts',
    'myst_nb',
    'sphinx.ext.autodoc',
    'sphinx.ext.autosummary',
    'sphinx.ext.napoleon',
    'sphinx.ext.viewcode',
    'sphinx_copybutton',
    'sphinx-mathjax-offline',
]

# Every example runs in every build, and one that fails ends the build.
nb_execution_mode = 'force'
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = -1  # a slow machine is not an error
nb_merge_streams = True
myst_enable_extensions = ['dollarmath', 'amsmath']
myst_heading_anchors = 3

autodoc_member_order = 'bysource'
autodoc_typehints = 'none'  # shapes and dtypes stand in the docstrings
maximum_signature_line_length = 100  # longer ones have a line per argument
napoleon_google_docstring = True
napoleon_use_ivar = True

html_theme = 'sphinx_book_theme'
html_static_path = html_css_files = ['narrow.css']
html_title = 'longmem_jax'
html_theme_options = {
    'show_toc_level': 2,
    'home_page_in_toc': True,
    'navbar_persistent': [],  # the search is in the sidebar; twice it would need a bar of its own
}

# With `-t short`: what is replaced on a page. Each must be there.
SHORT = {
    'notebooks/quickstart': {"train('quickstart', ": "train('quickstart:tiny', "},
    'notebooks/ten_minutes': {"'train.num_steps': 150": "'train.num_steps': 4"},
    # Few steps teach nothing, so the answers are not checked.
    'notebooks/own_model': {', 300), 1)': ', 50), 1)', '\nassert right': '\n# assert right'},
    'notebooks/book': {
        'STEPS = 600': 'STEPS = 4',
        '\nassert right': '\n# assert right',
        "4000), ('validation', 64), ('test', 64)": "64), ('validation', 4), ('test', 4)",
        'others=400': 'others=40',
        'memory_size=4096': 'memory_size=1024',
    },
}
SAID = (
    'These pages were built with `-t short`: the training below took few steps, so what it prints '
    'is not what the text says. Without that option it takes all of them.'
)


def shorten(app, page, source):
    """Puts few steps in place of many, and a note under the title."""
    for long, short in SHORT.get(page, {}).items():
        if long not in source[0]:
            raise ValueError(
                f'{page}: {long!r} is not there any more; change SHORT in docs/conf.py'
            )
        source[0] = source[0].replace(long, short)
    if page in SHORT:
        note = f'\\g<0>\n\n```{{note}}\n{SAID}\n```'
        source[0] = re.sub('^# .*', note, source[0], count=1, flags=re.MULTILINE)


def apart(app, env, names):
    """Puts notebooks into different groups of pages: `-j 2` reads two groups at a time."""
    long = [name for name in names if name.startswith('notebooks/')]
    rest = [name for name in names if name not in long]
    for place, name in enumerate(long):
        rest.insert(place * len(names) // len(long), name)
    names[:] = rest


def offer_colab(app, page, source):
    """Puts a link that opens a notebook in Colab under its title, once the project has an address."""
    if link := address.badge(page, address.address()):
        source[0] = re.sub('^# .*', f'\\g<0>\n\n{link}', source[0], count=1, flags=re.MULTILINE)


def split_names(app, what, name, of, options, lines):
    """Gives each of the attributes of `a, b: text` a line: Sphinx takes `a,` for the type of `b`."""
    found = []
    for line in lines:
        _, field, rest = line.partition(':ivar ')
        names, colon, text = rest.partition(':')
        each = names.split(', ') if field and colon else []
        # All but the last refer to it; what follows on other lines is the last one's.
        found += [f':ivar {one}: see `{each[-1]}`.' for one in each[:-1]]
        found.append(f':ivar {each[-1]}:{text}' if len(each) > 1 else line)
    lines[:] = found


def without_objects(app, what, name, of, options, signature, returns):
    """Leaves out a signature that has defaults nobody can write, such as functions."""
    return ('(...)' if signature and '=<' in signature.replace(' ', '') else signature), returns


def setup(app):
    """Called by Sphinx."""
    # It only names files, but does not say that pages can be read side by side with it.
    app.extensions['sphinx-mathjax-offline'].parallel_read_safe = True
    app.connect('source-read', offer_colab)
    app.connect('env-before-read-docs', apart)
    app.connect('autodoc-process-docstring', split_names, priority=600)  # after napoleon
    app.connect('autodoc-process-signature', without_objects)
    if app.tags.has('short'):
        app.connect('source-read', shorten)
