"""Texts of a data source, as the tests of sources read them."""

from longmem_jax.config.base import base
from longmem_jax.data.load import load_source


def settings(path, **changes):
    """`config.data` of a path."""
    data = base().data
    data.path = str(path)
    data.update(changes)
    return data


def texts(data, split='train'):
    """The bytes of all documents."""
    source = load_source(data, split)
    return [source[index].text for index in range(len(source))]
