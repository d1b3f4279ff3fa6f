"""Figures without a display."""

import matplotlib.backends.backend_agg
import matplotlib.figure


def figure(width: float, height: float) -> matplotlib.figure.Figure:
    """An empty figure of this size in inches, drawn in memory, so that its pixels can be read."""
    empty = matplotlib.figure.Figure(figsize=(width, height), dpi=120, layout='constrained')
    matplotlib.backends.backend_agg.FigureCanvasAgg(empty)
    return empty
