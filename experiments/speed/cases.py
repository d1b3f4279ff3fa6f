"""What is compared: the sizes of both sides, and by peer the cases and what each side sets for them."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The model of both sides, float32 without dropout, and the batch of a step."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    feed_forward: int = 1024
    segment: int = 128
    lanes: int = 4
    vocab: int = 256

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads


FULL = Sizes()
TOY = Sizes(layers=3, width=16, heads=2, feed_forward=24, segment=8, lanes=2, vocab=32)


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
      label: what both sides hold.
      config: the argument of `configs/benchmark.py` for our side; None = one layer, `layer`.
      fill: untimed steps that fill the memories of both sides.
      changes: fields of our configuration, by their path.
      peer: what the peer's side needs to know; see its file in `peers`.
      layer: fields of our layer, where one layer is compared alone.
    """

    label: str
    config: str | None = ''
    fill: int = 12
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    peer: dict[str, Any] = dataclasses.field(default_factory=dict)
    layer: dict[str, Any] = dataclasses.field(default_factory=dict)


def _slots(num_keys: int, sparse: bool) -> Case:
    """Product keys as one layer; `sparse` is of the peer's gradient, ours is dense."""
    layer = dict(num_keys=num_keys, num_heads=4, top_k=32, query_dim=256)
    kind = 'sparse' if sparse else 'dense'
    return Case(
        f'one layer, {num_keys} x {num_keys} slots, {kind} gradient of the peer',
        config=None,
        fill=2,
        layer=layer,
        peer=layer | dict(sparse=sparse),
    )


CASES = {
    'product_keys': {
        '128': _slots(128, False),
        '256': _slots(256, False),
        '512': _slots(512, False),
        '512_sparse': _slots(512, True),
    },
    'memorizing': {
        '8192': Case(
            '8,192 memories in the third layer, k = 32, an XL cache of 128',
            config='memorizing=8192',
            fill=70,
            peer=dict(memories=8192, layer=3, k=32, cache=128),
        ),
    },
}
