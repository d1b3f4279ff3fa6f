"""The promises of the contract, checked for any entry of the registry.

Of this package or of another one, once it is registered. With pytest::

    import pytest
    from longmem_jax.testing import conformance


    @pytest.mark.parametrize('name, promise', conformance.cases('gated_delta'))
    def test_conforms(name, promise):
        conformance.check(name, promise)

`cases('gated_delta', long=True)` adds its variants and promises that take longer, such as long streams.
A promise that is broken raises an `AssertionError`, which says what is broken, where, by how much, and
what to do. Goldens are not among the promises: they compare with the numbers of the authors' code.
"""

from collections.abc import Callable

from longmem_jax.errors import UsageError, unknown
from longmem_jax.testing import gradients, recurrent, segments, states, streams, toys
from longmem_jax.testing.programs import Entry, entry

# Promises that settings can break: of an entry and of its variants.
VARIED: dict[str, Callable[[Entry], None]] = {
    # The causes of much else come first.
    'sums_are_float32': states.sums_are_float32,
    'chunks_are_steps': recurrent.chunks_are_steps,
    'causal': segments.causal,
    'rows_apart': segments.rows_apart,
    'reset': segments.reset,
    'padding': segments.padding,
    'padded_row': segments.padded_row,
    'decode': streams.decode,
    'start_anywhere': segments.start_anywhere,
    'gradients': gradients.gradients,
    'gradients_with_starts': gradients.gradients_with_starts,
    'parameters_used': gradients.parameters_used,
    'written_and_read': states.written_and_read,
    'memory_is_a_file': states.memory_is_a_file,
    'far_counts': states.far_counts,
    'reports': states.reports,
    'no_lapack': gradients.no_lapack,
    'open_at_once': streams.open_at_once,
    'starts_inside': recurrent.starts_inside,
}
# Promises that settings cannot break: of an entry with its first settings.
ONCE: dict[str, Callable[[Entry], None]] = {
    'bounded': states.bounded,
    'float64_is_for_activations': states.float64_is_for_activations,
    'gradients_stopped': gradients.gradients_stopped,
}
# Promises that each take a program of their own.
LONG: dict[str, Callable[[Entry], None]] = {
    'segment_at_once': streams.segment_at_once,
    'extended_with_padding': streams.extended_with_padding,
    'whole_prompt': streams.whole_prompt,
    'long_streams': states.long_streams,
    'dropout': gradients.dropout,
    'apart_in_training': segments.apart_in_training,
    'gradients_asked': gradients.gradients_asked,
}
PROMISES = VARIED | ONCE | LONG


def cases(*names: str, long: bool = False) -> list[tuple[str, str]]:
    """Pairs of an entry and a promise, for `check`; an entry's own follow each other.

    Args:
      names: of entries; none = all that are registered.
      long: with the variants of every entry, as 'NAME:VARIANT', and with the promises of `LONG`.

    Raises:
      UsageError: there is no such entry.
    """
    known = list(toys.every_layer())
    for name in names:
        if name not in known:
            raise UsageError(unknown('name', name, known))
    chosen = [name for name in known if not names or name.partition(':')[0] in names]
    return [
        (name, promise)
        for name in chosen
        for promise in PROMISES
        if (long or (':' not in name and promise not in LONG)) and _has(name, promise)
    ]


def _has(name: str, promise: str) -> bool:
    """Whether an entry has made a promise."""
    if promise in ('gradients_stopped', 'gradients_asked'):
        return ':' not in name and gradients.asks(name) is not None
    if promise == 'chunks_are_steps':
        return recurrent.is_recurrent(name)
    if promise == 'starts_inside':
        return recurrent.takes_starts(name)
    return ':' not in name or promise in VARIED


def check(name: str, promise: str) -> None:
    """Checks a promise of an entry.

    Args:
      name: of the entry, or 'NAME:VARIANT'.
      promise: one of `PROMISES`.

    Raises:
      AssertionError: it is broken.
    """
    PROMISES[promise](entry(name))
