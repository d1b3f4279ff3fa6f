"""Commands that train, measure and draw; the README of each folder says what and with which result."""

import sys

from longmem_jax.devices import allocator

if sys.argv[:1] == ['-m']:
    # A command is starting: before it imports what starts threads, which share their part of the
    # memory with later ones, and cannot keep large arrays there.
    allocator.keep_pages()
