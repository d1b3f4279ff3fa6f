"""In which order documents are read, and where lanes begin that have none of their own.

The order is a permutation that is computed place by place. Nothing is stored for it, whatever the
number of documents, and it is whole numbers only, so that it is the same with every version of every
library. Checkpoints keep `VERSION`.
"""

from typing import Any

import numpy as np

VERSION = 2  # 1 was the permutation of numpy, whose numbers may change with its versions
ROUNDS = 6
BITS = (1 << 64) - 1


def _mixed(number: int) -> int:
    """A number of 64 bits, scattered: one step of SplitMix64 (Steele et al., 2014)."""
    number = (number + 0x9E3779B97F4A7C15) & BITS
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & BITS
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & BITS
    return number ^ (number >> 31)


def permuted(place: int, count: int, *key: int) -> int:
    """Where a permutation of `count` things, chosen by a key, takes the one at a place.

    A Feistel network (Luby and Rackoff, 1988) permutes the next larger even power of two; what falls
    outside is taken on until it falls inside (Black and Rogaway, 2002).
    """
    half = ((count - 1).bit_length() + 1) // 2
    mask, secret, place = (1 << half) - 1, 0, int(place)  # numpy's integers overflow
    for part in key:
        secret = _mixed(secret ^ int(part))
    while True:
        left, right = place >> half, place & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (_mixed(secret ^ _mixed(turn << 56 | right)) & mask)
        place = left << half | right
        if place < count:
            return place


def document(number: int, count: int, num_lanes: int, seed: int) -> int:
    """The document at a place of the endless sequence of all epochs.

    Every epoch has all documents once. Those of its first half are always the same, in a new order,
    and so are those of its second, so `num_lanes` neighbours are different documents also where an
    epoch ends. Documents that are too few for that keep one order.

    Args:
      number: place in the sequence.
      count: documents of an epoch.
    """
    epoch, place = divmod(number, count)
    first = count // 2
    if first >= num_lanes:
        if place < first:
            place = permuted(place, first, seed, epoch)
        else:
            place = first + permuted(place - first, count - first, seed, epoch)
    return permuted(place, count, seed)


def spread(sizes: np.ndarray, num_lanes: int) -> list[tuple[int, int, int]]:
    """Where lanes begin that share documents, int64 [documents] of any unit.

    At equal distances in all of their text. Returns for every lane its document, and where in it:
    `part` of `whole`, with 0 <= part < whole.
    """
    ends, begins = np.cumsum(sizes, dtype=np.int64), []
    for lane in range(num_lanes):
        at = int(ends[-1]) * lane // num_lanes
        index = int(np.searchsorted(ends, at, side='right')) % len(sizes)
        whole = max(int(sizes[index]), 1)
        begins.append((index, max(at - int(ends[index]) + whole, 0) % whole, whole))
    return begins


def circles(corpus: Any, num_lanes: int) -> bool:
    """Whether lanes in training begin inside of documents: those are too few, and may be cut.

    A corpus whose documents may be begun anywhere has `sizes`; those with questions have not.
    """
    return len(corpus) < num_lanes and hasattr(corpus, 'sizes')


def repeated(corpus: Any, num_lanes: int, segment_length: int) -> list[str]:
    """Warnings if lanes in training read the same text at the same time; [] = none."""
    count = len(corpus)
    if count >= num_lanes:
        return []
    if not circles(corpus, num_lanes):
        return [
            f'config.train.num_lanes = {num_lanes} and {count} training documents, which are not '
            'begun in the middle: lanes read the same at the same time. Use more documents, or '
            f'--config.train.num_lanes={count}'
        ]
    size, batch = int(corpus.sizes().sum()), num_lanes * segment_length
    if size >= batch:
        return []
    return [
        f'The training text has {size:,} bytes, less than the {batch:,} tokens of {num_lanes} lanes: '
        'some lanes read the same at the same time. Use more text, or a smaller config.train.num_lanes'
    ]


def shared_out(documents: int, num_lanes: int, most: int, multiple: int = 1) -> tuple[int, int]:
    """Lanes that have a document in evaluation, and how many segments each reads.

    Args:
      documents: of the split; each is read by one lane, as its memory is carried from its begin.
      num_lanes, most: lanes, and the segments each would read if all had a document; 0 = all.
      multiple: the number of lanes must be a multiple of this, which divides `num_lanes`.

    Returns:
      Lanes; and segments per lane, in all those of `num_lanes`, or a few more; 0 = all.
    """
    used = min(-(-documents // multiple) * multiple, num_lanes)
    return used, -(-most * num_lanes // min(documents, num_lanes))
