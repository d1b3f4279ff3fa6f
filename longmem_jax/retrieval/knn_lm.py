"""Probabilities from neighbours and their mixture with a model's (Khandelwal et al., 2020, Eqs. 2-3)."""

import numpy as np

MISSING = -10000.0  # log-probability of a token that no neighbour has


def log_weights(scores: np.ndarray) -> np.ndarray:
    """Log softmax over the last axis, float64; `scores` are negative distances over a temperature.

    Scores of -inf, where there was no neighbour, have no weight, even where all are.
    """
    scores = np.asarray(scores, np.float64)
    highest = scores.max(axis=-1, keepdims=True)
    shifted = scores - np.where(np.isfinite(highest), highest, 0)
    total = np.exp(shifted).sum(axis=-1, keepdims=True)
    return shifted - np.log(np.where(total > 0, total, 1))


def log_probability(scores: np.ndarray, values: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Log-probability of the targets by the neighbours alone.

    Args:
      scores: [..., k], greater is nearer: negative squared distances, or inner products.
      values: int [..., k], the token that followed each neighbour.
      targets: int [...].

    Returns:
      float64 [...]; `MISSING` where no neighbour has the target.
    """
    weights = np.exp(log_weights(scores)) * (values == targets[..., None])
    total = weights.sum(axis=-1)
    return np.where(total > 0, np.log(np.where(total > 0, total, 1.0)), MISSING)


def mixture(logs: list[np.ndarray], shares: list[float]) -> np.ndarray:
    """Log of a mixture of probabilities, from arrays of one shape; `shares` sum to one."""
    terms = [log + np.log(share) for log, share in zip(logs, shares, strict=True) if share > 0]
    result = terms[0]
    for term in terms[1:]:
        result = np.logaddexp(result, term)
    return result
