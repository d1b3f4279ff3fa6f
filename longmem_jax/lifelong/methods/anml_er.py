"""ANML-ER: a second encoder gates what the first gives to the head (Holla et al., 2020).

A neuromodulated meta-learning algorithm (Beaulieu et al., 2020) with an episodic memory, of first order.
The inner loop learns encoder and head; the gate of a text is learned by the meta-gradient alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from longmem_jax.lifelong import episodes
from longmem_jax.lifelong.heads import dense, linear
from longmem_jax.lifelong.learner import Method
from longmem_jax.lifelong.network import Encoded, Encoder, Head, Network
from longmem_jax.lifelong.rows import Rows

SETTINGS = dict(
    episodes.SETTINGS,
    gate=True,  # False = without a gate, which is MAML-ER
    train_modulator=False,  # whether the gate's own encoder is trained; its linear layers always are
)


def released() -> dict[str, dict[str, Any]]:
    """What the authors' release does otherwise than the paper; see `episodes.released`."""
    found = episodes.released()
    return found | dict(method=found['method'] | dict(train_modulator=True))


class Gated(NamedTuple):
    """A network whose encoder is gated by another, `f(x) = head(encoder(x) * h(x))`.

    Parameters: those of `Network`, 'modulator' of an encoder like the first, and 'gate': its linear
    layers {'first': ..., 'second': ...}.
    """

    encoder: Encoder
    head: Head

    def init(self, key: jax.Array) -> dict[str, Any]:
        """The parameters at the start."""
        network, modulator, first, second = jax.random.split(key, 4)
        width = self.encoder.width
        return Network(self.encoder, self.head).init(network) | {
            'modulator': self.encoder.init(modulator),
            'gate': {'first': dense(first, width, width), 'second': dense(second, width, width)},
        }

    def scores(self, params: Any, rows: Rows, key: jax.Array | None = None) -> jax.Array:
        """Scores of the answers; `key` is of dropout of the first encoder, None = no dropout."""
        texts = self.head.inputs(rows)
        encoded = self.encoder.encode(params['encoder'], texts, key)
        modulator = self.encoder.encode(params['modulator'], texts, None)
        opened = gate(params['gate'], modulator.pooled)
        gated = Encoded(encoded.pooled * opened, encoded.tokens * opened[:, None])
        return self.head.scores(params['head'], gated, rows)


def gate(params: Any, pooled: jax.Array) -> jax.Array:
    """`h = sigmoid(W2 relu(W1 x + b1) + b2)`, in (0, 1); [n, width] each.

    The vectors of a text's tokens have the gate of the text: the paper gates one vector per text.
    """
    hidden = jnp.maximum(linear(params['first'], pooled), 0)
    return jax.nn.sigmoid(linear(params['second'], hidden))


def plan(
    network: Network, settings: Any, optimizer: optax.GradientTransformation, batch: int
) -> episodes.Plan:
    """What it learns in an episode."""
    fast = ('encoder', 'head')
    if not settings.gate:
        return episodes.Plan(network, fast, (), settings, optimizer, batch)
    gated = Gated(network.encoder, network.head)
    frozen = () if settings.train_modulator else ('modulator',)
    return episodes.Plan(gated, fast, frozen, settings, optimizer, batch)


def initial(network: Network, settings: Any, key: jax.Array) -> Any:
    """The parameters that the optimizer is of."""
    found = plan(network, settings, optax.identity(), 1)
    return episodes.init(found, key).params


METHOD = Method(SETTINGS, episodes.check, episodes.made_by(plan), initial)
