"""Tables of experiments as Markdown."""

import statistics
from collections.abc import Sequence


def span(values: Sequence[float], digits: int = 3) -> str:
    """Mean (minimum - maximum); one number if they are equal as they are shown."""
    mean, low, high = (f'{f(values):.{digits}f}' for f in (statistics.mean, min, max))
    return mean if low == high else f'{mean} ({low} - {high})'


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table of text cells."""
    text = [heads, ['---'] * len(heads), *lines]
    return '\n'.join(f'| {" | ".join(line)} |' for line in text)
