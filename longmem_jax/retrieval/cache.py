"""The continuous cache: what followed similar positions in the same document (Grave et al., 2017).

A token has probability `sum_i 1{x_i+1 = token} exp(flatness h . h_i)`, normalised, over the earlier
positions `i` of its document; `h` are the inputs of the output layer.
"""

import numpy as np

from longmem_jax.retrieval.knn_lm import MISSING, log_probability
from longmem_jax.retrieval.reading import Part, in_text_order


class Cache:
    """The last `length` hidden vectors of every lane's document, and the tokens that followed."""

    def __init__(self, length: int, flatness: tuple[float, ...]):
        """Starts empty; each `flatness` multiplies the inner products, 0 counts tokens."""
        self._length, self._flatness = length, flatness
        self._hidden: dict[int, np.ndarray] = {}
        self._values: dict[int, np.ndarray] = {}

    def read(self, part: Part) -> np.ndarray:
        """Log-probabilities of the targets by the cache alone, float64 [segments, lanes, length,
        flatness]. Then writes the part, which has `hidden`, to the cache. Only earlier positions of
        a token's document are used; if there are none, or none with the target, the result is
        `knn_lm.MISSING`.
        """
        shape, part = part.targets.shape, in_text_order(part)
        logs = np.full((*part.targets.shape, len(self._flatness)), MISSING)
        for segment, lane in np.ndindex(part.begins.shape):
            if part.begins[segment, lane]:
                self._hidden.pop(lane, None)
            counted = part.counted[segment, lane]
            if counted.any():
                hidden, targets = part.hidden[segment, lane], part.targets[segment, lane]
                logs[segment, lane, counted] = self._read_lane(
                    lane, hidden[counted], targets[counted]
                )
        return logs.reshape(*shape, -1)

    def _read_lane(self, lane: int, queries: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """As `read` for one segment of one lane: [n, d_model] and [n] to [n, flatness]."""
        hidden, tokens = queries, targets
        if lane in self._hidden:
            hidden = np.concatenate([self._hidden[lane], queries])
            tokens = np.concatenate([self._values[lane], targets])
        products = queries @ hidden.T
        position = len(hidden) - len(queries) + np.arange(len(queries))[:, None]
        cached = np.arange(len(hidden))[None]
        mask = (cached < position) & (cached >= position - self._length)
        values = np.broadcast_to(tokens[None], products.shape)
        result = np.full((len(queries), len(self._flatness)), MISSING)
        readable = mask.any(axis=1)
        for i, flatness in enumerate(self._flatness):
            scores = np.where(mask, flatness * products, -np.inf)[readable]
            result[readable, i] = log_probability(scores, values[readable], targets[readable])
        self._hidden[lane], self._values[lane] = hidden[-self._length :], tokens[-self._length :]
        return result
