"""The continuous cache: what followed similar positions in the same document (Grave et al., 2017)."""

import numpy as np

from longmem_jax.retrieval.knn_lm import MISSING, log_probability
from longmem_jax.retrieval.reading import Part


class Cache:
    """The last `length` keys of every lane's document, and the tokens that followed."""

    def __init__(self, lanes: int, length: int, temperatures: tuple[float, ...]):
        """Starts empty; `temperatures` divide the squared distances."""
        self._length, self._temperatures = length, temperatures
        self._keys: list[np.ndarray | None] = [None] * lanes
        self._values: list[np.ndarray | None] = [None] * lanes

    def read(self, part: Part) -> np.ndarray:
        """Log-probabilities of the targets by the cache alone; then writes the part to the cache.

        Only earlier positions of a token's document are used; if there are none, or none with the
        target, the result is `knn_lm.MISSING`.

        Returns:
          float64 [segments, lanes, length, temperatures].
        """
        segments, lanes, length = part.targets.shape
        logs = np.full((segments, lanes, length, len(self._temperatures)), MISSING)
        for segment in range(segments):
            for lane in range(lanes):
                if part.start[segment, lane]:
                    self._keys[lane] = None
                counted = part.counted[segment, lane]
                if counted.any():
                    keys, targets = part.keys[segment, lane], part.targets[segment, lane]
                    logs[segment, lane, counted] = self._read_lane(
                        lane, keys[counted], targets[counted]
                    )
        return logs

    def _read_lane(self, lane: int, queries: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """As `read` for one segment of one lane: [n, d_model] and [n] to [n, temperatures]."""
        keys, tokens = self._keys[lane], self._values[lane]
        if keys is None:
            keys, tokens = queries[:0], targets[:0]
        num_cached, length = len(keys), len(queries)
        keys, tokens = np.concatenate([keys, queries]), np.concatenate([tokens, targets])
        distance = np.square(queries).sum(1)[:, None] + np.square(keys).sum(1)[None]
        distance = distance - 2 * queries @ keys.T
        position = num_cached + np.arange(length)[:, None]
        key_position = np.arange(len(keys))[None]
        mask = (key_position < position) & (key_position >= position - self._length)
        values = np.broadcast_to(tokens[None], distance.shape)
        result = np.full((length, len(self._temperatures)), MISSING)
        readable = mask.any(axis=1)
        for i, temperature in enumerate(self._temperatures):
            scores = np.where(mask, -distance / temperature, -np.inf)[readable]
            result[readable, i] = log_probability(scores, values[readable], targets[readable])
        self._keys[lane], self._values[lane] = keys[-self._length :], tokens[-self._length :]
        return result
