"""Tokens that gained by a memory, and what was read for them: a text file and an HTML page."""

import html
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longmem_jax import files
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.errors import visible


class Read(NamedTuple):
    """Something that was read for a token.

    Attributes:
      weight: its share of what was read, from 0 to 1.
      source: where it is from, in a word or two.
      context: the text before the token that was read.
      token: its text.
      right: whether it is the token that was predicted.
    """

    weight: float
    source: str
    context: str
    token: str
    right: bool


class Gained(NamedTuple):
    """A token whose probability rose.

    Attributes:
      before: the text before it.
      token: its text.
      without, with_memory: its log-probability in nats.
      reads: what was read for it, the most important first.
    """

    before: str
    token: str
    without: float
    with_memory: float
    reads: list[Read]


def shown_text(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """Tokens as one line of text that a terminal shows.

    Left out are begin tokens and ids that the tokenizer does not know.
    """
    known = [
        token for token in tokens if 0 <= token < tokenizer.vocab_size and token != tokenizer.begin
    ]
    text = tokenizer.decode(np.asarray(known, np.int32)).decode('utf-8', 'replace')
    return visible(text.replace('\n', ' '))


def write(tokens: Iterable[Gained], folder: Path, name: str, title: str) -> tuple[Path, Path]:
    """Writes `NAME.txt` and `NAME.html` to a folder; `tokens` in the order of the report.

    Returns both paths.
    """
    lines, sections = [], []
    for token in tokens:
        before, after = np.exp(token.without), np.exp(token.with_memory)
        gain = f'gain {token.with_memory - token.without:.2f} nats'
        lines.append(f'{token.before} [{token.token}]  p {before:.4f} -> {after:.4f}, {gain}')
        rows = []
        for read in token.reads:
            line = f'{read.context} [{read.token}]'
            lines.append(f'    {read.weight:.3f}  {read.source}: {line}')
            mark = ' class="right"' if read.right else ''
            rows.append(
                f'<tr{mark}><td>{read.weight:.3f}</td><td>{html.escape(read.source)}</td>'
                f'<td>{html.escape(line)}</td></tr>'
            )
        sections.append(
            f'<h3>{html.escape(token.before)} <mark>{html.escape(token.token)}</mark></h3>'
            f'<p>p {before:.4f} &rarr; {after:.4f}, {gain}</p>'
            '<table><tr><th>weight</th><th>from</th><th>context [token]</th></tr>'
            f'{"".join(rows)}</table>'
        )
    text, page = folder / f'{name}.txt', folder / f'{name}.html'
    files.write(text, '\n'.join(lines) + '\n')
    style = 'body{font-family:monospace} td{padding:0 1em} .right{background:#dfd}'
    head = f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
    files.write(page, head + ''.join(sections))
    return text, page
