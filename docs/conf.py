"""Sphinx: `pip install -e '.[docs]' && sphinx-build -W docs OUT`; all examples run while it builds."""

import os
import sys
from pathlib import Path

import longmem_jax

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

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
nb_execution_timeout = 600
nb_merge_streams = True
myst_enable_extensions = ['dollarmath', 'amsmath']
myst_heading_anchors = 3

autodoc_member_order = 'bysource'
autodoc_typehints = 'none'  # shapes and dtypes stand in the docstrings
napoleon_google_docstring = True
napoleon_use_ivar = True

html_theme = 'sphinx_book_theme'
html_title = 'longmem_jax'
html_theme_options = {'show_toc_level': 2, 'home_page_in_toc': True}
