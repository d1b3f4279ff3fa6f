"""Statistics of slot usage, as in the released code of product-key memories."""

import numpy as np


def shares(total: np.ndarray) -> np.ndarray:
    """Accumulated weights or reads, [slots], as a distribution, float64 [slots]."""
    total = np.asarray(total, np.float64)
    return total / max(total.sum(), 1e-300)


def used(total: np.ndarray) -> float:
    """Percentage of slots read at least once."""
    return 100.0 * float(np.count_nonzero(total)) / len(total)


def divergence(total: np.ndarray) -> float:
    """Kullback-Leibler divergence from uniform use, nats; 0 = all slots are used equally."""
    distribution = shares(total)
    positive = distribution[distribution > 0]
    return float(np.log(len(distribution)) + (positive * np.log(positive)).sum())


def gini(total: np.ndarray) -> float:
    """Gini coefficient; 0 = all slots are used equally."""
    return float(1 - 2 * np.cumsum(np.sort(shares(total))).mean())


def top(total: np.ndarray, share: float) -> int:
    """How many of the most used slots make up this share of the use."""
    rising = np.cumsum(np.sort(shares(total)))
    return int(len(rising) - np.searchsorted(rising, 1 - share))
