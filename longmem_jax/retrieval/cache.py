"""The continuous cache: what followed similar places of the same document (Grave et al., 2017)."""

import numpy as np

from longmem_jax.retrieval.knn_lm import MISSING, log_probability
from longmem_jax.retrieval.reading import Part


class Cache:
    """The last `length` keys of every lane's document, and the tokens that followed them."""

    def __init__(self, lanes: int, length: int, temperatures: tuple[float, ...]):
        """Starts empty; `temperatures` divide the squared distances."""
        self._length, self._temperatures = length, temperatures
        self._keys: list[np.ndarray | None] = [None] * lanes
        self._values: list[np.ndarray | None] = [None] * lanes

    def read(self, part: Part) -> np.ndarray:
        """Log-probabilities of the targets by the cache alone, then writes the part.

        Only places before a token in its document are looked at; where there are none, or none
        with the target, the result is `knn_lm.MISSING`.

        Returns:
          float64 [segments, lanes, length, temperatures].
        """
        segments, lanes, length = part.targets.shape
        found = np.full((segments, lanes, length, len(self._temperatures)), MISSING)
        for segment in range(segments):
            for lane in range(lanes):
                if part.start[segment, lane]:
                    self._keys[lane] = None
                number = int(part.counted[segment, lane].sum())
                if number:
                    keys, values = part.keys[segment, lane], part.targets[segment, lane]
                    own = part.counted[segment, lane]
                    found[segment, lane, own] = self._lane(lane, keys[own], values[own])
        return found

    def _lane(self, lane, queries, values):
        keys, tokens = self._keys[lane], self._values[lane]
        if keys is None:
            keys, tokens = queries[:0], values[:0]
        before, number = len(keys), len(queries)
        keys, tokens = np.concatenate([keys, queries]), np.concatenate([tokens, values])
        distance = np.square(queries).sum(1)[:, None] + np.square(keys).sum(1)[None]
        distance = distance - 2 * queries @ keys.T
        place = before + np.arange(number)[:, None]
        other = np.arange(len(keys))[None]
        seen = (other < place) & (other >= place - self._length)
        rows = np.broadcast_to(tokens[None], distance.shape)
        result = np.full((number, len(self._temperatures)), MISSING)
        some = seen.any(axis=1)
        for at, temperature in enumerate(self._temperatures):
            scores = np.where(seen, -distance / temperature, -np.inf)[some]
            result[some, at] = log_probability(scores, rows[some], values[some])
        self._keys[lane], self._values[lane] = keys[-self._length :], tokens[-self._length :]
        return result
