"""Which token of a text stands where in a continuous memory, followed through its updates.

The signal is a sum of functions, and no single vector stands in it; but every write puts vectors at
known places, and at every later write the old signal is read at known places and set down at
others. Following the nearest vector of each tells how much of [0, 1] each token holds.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from longmem_jax.memory.infinity_former import continuous


def wanted_places(mass: np.ndarray, num_samples: int, sticky: bool) -> np.ndarray:
    """Where the old signal is read: by the attention `mass` [bins] of the last segment, or evenly."""
    if not sticky:
        return np.arange(1, num_samples + 1) / num_samples
    probabilities = continuous.bin_probabilities(jnp.asarray(mass[None]))
    return np.asarray(continuous.quantile_places(probabilities, num_samples))[0]


def follow(
    mass: np.ndarray, settings: Any, segment_length: int, sticky: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """What every segment of a text finds in the continuous memory.

    Args:
      mass: float [segments, bins], attention of every segment of one layer.
      settings: the layer's sub-config.
      segment_length: tokens per segment.
      sticky: places by quantiles of attention (of 'sampled' places, too), or evenly spaced.

    Returns:
      for every segment token numbers and their places in [0, 1], int64 and float64 [n]; n = 0
      while nothing is stored.
    """
    length, samples = settings['write_length'], settings['num_samples']
    threshold, kind = settings['memory_threshold'], settings['threshold_kind']
    first = threshold if threshold and kind == 'fill' else length
    later = continuous.update_positions(length, samples, settings['tau'])
    owners, places = np.zeros((0,), np.int64), np.zeros((0,))
    recent, pending, stored, found = [], [], 0, []
    for number in range(len(mass)):
        empty = not stored or (threshold and kind == 'clear' and stored >= threshold)
        needed = first if empty else length
        if len(pending) >= needed:
            rows, pending = pending[:needed], pending[needed:]
            if empty:
                owners, places = np.asarray(rows), continuous.first_positions(needed)
            else:
                wanted = wanted_places(mass[number - 1], samples, sticky)
                nearest = np.abs(places[None] - wanted[:, None]).argmin(axis=1)
                owners, places = np.concatenate([owners[nearest], rows]), later
            stored = (0 if empty else stored) + needed
        found.append((owners, places))
        recent += range(number * segment_length, (number + 1) * segment_length)
        leaving = max(len(recent) - settings['memory_length'], 0)
        pending, recent = pending + recent[:leaving], recent[leaving:]
    return found


def spaces(owners: np.ndarray, places: np.ndarray, num_tokens: int) -> np.ndarray:
    """Share of [0, 1] that every token of a text holds: its Voronoi cells, float64 [num_tokens]."""
    order = np.argsort(places, kind='stable')
    inner = np.clip((places[order][1:] + places[order][:-1]) / 2, 0.0, 1.0)
    cells = np.diff(np.concatenate([[0.0], inner, [1.0]]))
    return np.bincount(owners[order], weights=cells, minlength=num_tokens)


def borders(settings: Any, count: int = 6) -> list[float]:
    """Where the writes before the last one begin: tau, tau squared, ... with even places."""
    return [settings['tau'] ** number for number in range(1, count + 1)]
