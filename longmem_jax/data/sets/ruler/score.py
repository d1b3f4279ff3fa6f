"""RULER's scores of what a model writes after a prompt."""

from collections.abc import Sequence


def string_match_all(text: str, outputs: Sequence[str]) -> float:
    """The share of the expected strings that occur in a text, whatever the case."""
    return sum(output.lower() in text.lower() for output in outputs) / len(outputs)


def string_match_part(text: str, outputs: Sequence[str]) -> float:
    """Whether any of the expected strings occurs in a text, whatever the case; of questions."""
    return float(any(output.lower() in text.lower() for output in outputs))
