"""Figures without a display."""

import matplotlib.backends.backend_agg
import matplotlib.figure


def figure(width: float, height: float) -> matplotlib.figure.Figure:
    """An empty figure of that many inches, drawn in memory: its canvas has pixels to read."""
    made = matplotlib.figure.Figure(figsize=(width, height), dpi=120, layout='constrained')
    matplotlib.backends.backend_agg.FigureCanvasAgg(made)
    return made
