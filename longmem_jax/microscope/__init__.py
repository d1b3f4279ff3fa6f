"""One page that shows what a memory does for a text."""
