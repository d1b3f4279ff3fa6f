"""Characters that a terminal obeys instead of showing them, as text that it shows."""

import re

# Control characters and what changes the direction of a line; tabs and line ends are harmless.
_OBEYED = re.compile('[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]')


def visible(text: str) -> str:
    r"""The text with every such character as its escape, `\x1b` for ESC; half characters too."""
    text = _OBEYED.sub(lambda found: found[0].encode('unicode_escape').decode(), text)
    return text.encode('utf-8', 'backslashreplace').decode()
