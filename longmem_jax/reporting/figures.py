"""Figures without a display."""

import typing

if typing.TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(width: float, height: float) -> 'Figure':
    """An empty figure of this size in inches, drawn in memory, so that its pixels can be read."""
    # Here, so that commands that draw nothing start sooner.
    import matplotlib.backends.backend_agg
    import matplotlib.figure

    empty = matplotlib.figure.Figure(figsize=(width, height), dpi=120, layout='constrained')
    matplotlib.backends.backend_agg.FigureCanvasAgg(empty)
    return empty
