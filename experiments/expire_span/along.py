"""Loss along a text, part by part, of several runs: a Markdown table and a figure (Figs. 9 and 12).

python -m longmem_jax.main --mode=score --workdir=DIR --prompt=@TEXT --output=FILE.jsonl
python -m experiments.expire_span.along --every=1024 --output=FILE.png 'LABEL=FILE.jsonl,FILE.jsonl' ...

The files of a label are seeds, or models, that were scored on one text; cells are mean (minimum -
maximum) over them, in bits per token. The last part is what is left of the text.
"""

import json
import math
from pathlib import Path

import matplotlib.figure
import numpy as np

from experiments import markdown
from experiments.options import make_parser
from longmem_jax.reporting import figures


def bits(file: Path) -> np.ndarray:
    """Bits of every token of a text, float64 [n]; nan for a first token that has no loss."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    nats = [math.nan if row['nats'] is None else row['nats'] for row in rows]
    return np.asarray(nats, np.float64) / math.log(2)


def by_part(bits: np.ndarray, every: int) -> list[float]:
    """The mean of every `every` tokens, and of the rest."""
    return [float(np.nanmean(bits[at : at + every])) for at in range(0, len(bits), every)]


def table(found: dict[str, list[list[float]]], every: int) -> str:
    """Rows: parts of the text, by their first token; columns: labels, from `by_part`."""
    lines = [
        [f'{part * every:,}', *(markdown.span(list(seeds)) for seeds in of_labels)]
        for part, of_labels in enumerate(
            zip(*(zip(*seeds, strict=True) for seeds in found.values()), strict=True)
        )
    ]
    return markdown.table(['from token', *found], lines)


def draw(found: dict[str, list[list[float]]], every: int) -> matplotlib.figure.Figure:
    """The same as lines: means over seeds, and their ranges."""
    figure, axes = figures.one_panel(8, 4)
    for label, seeds in found.items():
        values, places = np.asarray(seeds), every * (np.arange(len(seeds[0])) + 0.5)
        (line,) = axes.plot(places, values.mean(axis=0), marker='.', label=label)
        ends = values.min(axis=0), values.max(axis=0)
        axes.fill_between(places, *ends, color=line.get_color(), alpha=0.15)
    figures.label(axes, 'token of the text', f'bits per token, mean of {every:,}', legend=True)
    return figure


def main() -> None:
    """Runs the command."""
    parser = make_parser(__doc__)
    parser.add_argument('runs', nargs='+')
    parser.add_argument('--every', type=int, default=1024)
    parser.add_argument('--output', type=Path)
    options = parser.parse_args()
    if options.every < 1:
        parser.error(f'--every={options.every}: must be at least 1')
    whole: dict[str, list[np.ndarray]] = {}
    for text in options.runs:
        label, _, names = text.rpartition('=')
        whole[label] = [bits(Path(name)) for name in names.split(',')]
    lengths = {len(each) for seeds in whole.values() for each in seeds}
    if len(lengths) > 1:
        raise SystemExit(
            f'files of different texts: {", ".join(map(str, sorted(lengths)))} tokens.'
        )
    found = {
        label: [by_part(each, options.every) for each in seeds] for label, seeds in whole.items()
    }
    print(table(found, options.every))
    if options.output:
        figures.save(draw(found, options.every), options.output)


if __name__ == '__main__':
    main()
