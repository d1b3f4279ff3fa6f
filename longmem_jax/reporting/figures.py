"""Figures without a display."""

import typing
from pathlib import Path

from longmem_jax.errors import UsageError
from longmem_jax.files import whole_file

if typing.TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure(width: float, height: float) -> 'Figure':
    """An empty figure of this size in inches, drawn in memory, so that its pixels can be read."""
    # Here, so that commands that draw nothing start sooner.
    import matplotlib.backends.backend_agg
    import matplotlib.figure

    empty = matplotlib.figure.Figure(figsize=(width, height), dpi=120, layout='constrained')
    matplotlib.backends.backend_agg.FigureCanvasAgg(empty)
    return empty


def one_panel(width: float, height: float) -> 'tuple[Figure, Axes]':
    """An empty figure of this size with one panel."""
    empty = figure(width, height)
    return empty, empty.subplots()


def label(axes: 'Axes', x: str, y: str, *, legend: bool = False) -> None:
    """Names both axes and draws a light grid; `legend`: also the names of what was drawn."""
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(fontsize=8)


def save(figure: 'Figure', path: str | Path) -> None:
    """Writes or replaces the file of a figure as a whole; its name says the format (.png, .pdf).

    Raises:
      UsageError: a format that figures do not have.
    """
    kind, known = Path(path).suffix[1:] or 'png', figure.canvas.get_supported_filetypes()
    if kind.lower() not in known:
        raise UsageError(
            f'{path}: a figure cannot be a .{kind} file; allowed are .{", .".join(sorted(known))}.'
        )
    with whole_file(path) as partial:
        figure.savefig(partial, format=kind)
