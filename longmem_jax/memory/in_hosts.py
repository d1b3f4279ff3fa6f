"""Settings of memories in a pretrained decoder: gates and windows."""

from longmem_jax.contract import Group

# Gates of a memory in a pretrained decoder begin almost closed, at .05. The decoder was never trained
# with a memory; an open gate would replace half of each head's output at once.
FIRST_GATE_IN_HOST = -3.0
# First tokens of a document that windows keep, as in the paper on attention sinks (see `sinks.py`).
FIRST_TOKENS = 4


def room_of_window(reach: int) -> int:
    """Vectors of a window of `reach` that keeps the first tokens, and at least as many others."""
    return max(reach, 2 * FIRST_TOKENS)


def position_of_window(position: str) -> str:
    """The position scheme of a window of older vectors before a segment of a pretrained decoder.

    Positions that are added to embeddings begin at 0 in every segment, so they do not tell how old a
    vector is. A bias by distance tells this for vectors older than a segment. A learned bias is for
    all vectors before the segment (`rates_of_window`); without it, heads would mistake an old vector for
    the one at the same position of the segment.
    """
    return 'alibi_beyond' if position == 'none' else position


def rates_of_window(position: str) -> tuple[Group, ...]:
    """Groups for the biases of `position_of_window`: at the rate of the rest they would hardly move."""
    return (('/memory_bias$', 10.0, False),) if position == 'none' else ()
