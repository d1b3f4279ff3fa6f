"""Positions of a text's tokens in a continuous memory, followed through its updates.

The signal is a sum of functions and does not contain single vectors. But every write puts vectors at
known positions, and every later write reads the old signal at known positions and moves it to others.
Following the nearest vector of each position tells how much of [0, 1] each token occupies.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from longmem_jax.memory.infinity_former import continuous
from longmem_jax.models.language_model import LanguageModel


def fields_of(model: LanguageModel) -> dict[str, Any]:
    """The sub-config of a model's infinity-former layers, `write_length` as it takes effect."""
    fields = dict(model.config.infinity_former)
    return fields | dict(write_length=fields['write_length'] or model.segment_length)


def first_length(fields: dict[str, Any]) -> int:
    """Vectors in the first fit."""
    fills = fields['memory_threshold'] and fields['threshold_kind'] == 'fill'
    return fields['memory_threshold'] if fills else fields['write_length']


def write_begins(fields: dict[str, Any], num_tokens: int) -> list[int]:
    """The tokens of a text with which later writes begin, if `num_tokens` wait to be written or are."""
    length = fields['write_length']
    return list(range(first_length(fields), num_tokens - length + 1, length))


def read_positions(mass: np.ndarray, num_samples: int, sticky: bool) -> np.ndarray:
    """Positions in [0, 1] where a write reads the old signal, float [num_samples].

    Args:
      mass: float [bins], attention of the last segment.
      num_samples: number of positions.
      sticky: quantiles of the attention, or evenly spaced.
    """
    if not sticky:
        return np.arange(1, num_samples + 1) / num_samples
    probabilities = continuous.bin_probabilities(jnp.asarray(mass[None]))
    return np.asarray(continuous.quantile_places(probabilities, num_samples))[0]


def follow(
    mass: np.ndarray, fields: dict[str, Any], segment_length: int, sticky: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The tokens in the continuous memory before every segment of a text.

    Args:
      mass: float [segments, bins], attention of every segment of one layer.
      fields: of the layer, from `fields_of`.
      segment_length: tokens per segment.
      sticky: positions are quantiles of the attention (also for 'sampled'), or evenly spaced.

    Returns:
      For every segment, token numbers and their positions in [0, 1], int64 and float64 [n]; n = 0
      while nothing is stored.
    """
    length, samples = fields['write_length'], fields['num_samples']
    threshold, kind = fields['memory_threshold'], fields['threshold_kind']
    first = first_length(fields)
    later = continuous.update_positions(length, samples, fields['tau'])
    owners, positions = np.zeros((0,), np.int64), np.zeros((0,))
    recent, pending, num_stored, stored = [], [], 0, []
    for segment in range(len(mass)):
        empty = not num_stored or (threshold and kind == 'clear' and num_stored >= threshold)
        needed = first if empty else length
        if len(pending) >= needed:
            written, pending = pending[:needed], pending[needed:]
            if empty:
                owners, positions = np.asarray(written), continuous.first_positions(needed)
            else:
                read = read_positions(mass[segment - 1], samples, sticky)
                nearest = np.abs(positions[None] - read[:, None]).argmin(axis=1)
                owners, positions = np.concatenate([owners[nearest], written]), later
            num_stored = (0 if empty else num_stored) + needed
        stored.append((owners, positions))
        recent += range(segment * segment_length, (segment + 1) * segment_length)
        leaving = max(len(recent) - fields['memory_length'], 0)
        pending, recent = pending + recent[:leaving], recent[leaving:]
    return stored


def spaces(owners: np.ndarray, positions: np.ndarray, num_tokens: int) -> np.ndarray:
    """Share of [0, 1] of every token: the sizes of its Voronoi cells, float64 [num_tokens].

    Args:
      owners, positions: of one segment, from `follow`.
      num_tokens: tokens of the text.
    """
    order = np.argsort(positions, kind='stable')
    inner = np.clip((positions[order][1:] + positions[order][:-1]) / 2, 0.0, 1.0)
    cells = np.diff(np.concatenate([[0.0], inner, [1.0]]))
    return np.bincount(owners[order], weights=cells, minlength=num_tokens)


def borders(fields: dict[str, Any], count: int) -> list[float]:
    """Where the last `count` writes begin: tau, tau squared, ...

    With sticky memories only the last: earlier borders are where attention has moved them.
    """
    known = count if fields['sticky'] == 'none' else min(count, 1)
    return [fields['tau'] ** age for age in range(1, known + 1)]
