"""Keys, neighbours, local adaptation (a third party's MbPA++) and the meta-gradients of Meta-MbPA."""

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.lifelong import adaptation, episodic, steps
from longmem_jax.lifelong.methods import mbpa, meta_mbpa
from tests.parity_systems import lifelong_stub as stub


def _start(settings, arrays):
    """The network, its parameters, the key network's, the memory's rows, and the memory full of them."""
    params = stub.read_params(arrays, 'model.bert', 'model.classifier')
    key_network = {name: jnp.asarray(arrays[f'param/key.{name}']) for name in stub.ENCODER}
    network = stub.network(params)
    stream = stub.rows_of(arrays['in/tokens'], arrays['in/mask'], arrays['in/labels'])
    keys = steps.keys_of_rows(network, key_network, stream, settings['batch'])
    # Half precision may swap neighbours that are equally far to three digits.
    memory = episodic.empty(len(stream), network.encoder.width, 'float32')
    everywhere = jnp.ones(len(stream), bool)
    memory = episodic.write(memory, jnp.arange(len(stream)), keys, everywhere)
    return network, params, key_network, stream, keys, memory


def check_mbpa(settings, arrays):
    """Yields (name, ours, reference) for every result of a golden of local adaptation."""
    network, params, key_network, stream, keys, memory = _start(settings, arrays)
    given = (f'in/query_{name}' for name in ('tokens', 'mask', 'labels'))
    queries = stub.rows_of(*(arrays[name] for name in given))
    local = mbpa.local(
        mbpa.SETTINGS
        | mbpa.released()
        | dict(
            adapt_steps=settings['adapt_steps'],
            adapt_rate=settings['adapt_lr'],
            adapt_anchor=settings['adapt_lambda'],
            adapt_momentum=settings.get('momentum', 0.0),
            chunk=3,
        )
    )
    query_keys = steps.keys_of_rows(network, key_network, queries, settings['batch'])
    numbers, squared, found = episodic.nearest(memory, query_keys, settings['neighbours'])
    ours = {
        'out/keys': keys,
        'out/query_keys': query_keys,
        'out/neighbours': numbers,
        'out/distances': jnp.sqrt(squared),
        'out/base_logits': steps.predict_rows(network, params, queries, 2),
    }
    adapt = jax.jit(
        lambda numbers, found: adaptation.adapt_to(network, params, stream, numbers, found, local)
    )
    losses = []
    for row in range(len(queries)):
        part, before = adapt(numbers[row], found[row])
        losses.append(before)
        adapted = stub.named(adaptation.put(params, part), 'bert', 'classifier')
        ours |= {f'out/adapted.{name}_{row}': leaf for name, leaf in adapted.items()}
    scores = adaptation.predict_each(network, params, stream, queries, numbers, found, local)
    ours |= {
        'out/neighbour_loss': np.asarray(losses),
        'out/adapted_logits': scores,
        'out/query_loss': network.head.losses(scores, queries),
        'out/predictions': scores.argmax(axis=-1),
    }
    yield from stub.matched(ours, arrays)


def check_meta_mbpa(settings, arrays):
    """Yields (name, ours, reference) for every result of a golden of meta-gradients."""
    network, params, key_network, stream, _, memory = _start(settings, arrays)
    given = (f'in/batch_{name}' for name in ('tokens', 'mask', 'labels'))
    batch = stub.rows_of(*(arrays[name] for name in given))
    keys = steps.keys_of_rows(network, key_network, batch, settings['batch'])
    numbers, squared, found = episodic.nearest(memory, keys, settings['neighbours'])
    ours = {'out/neighbours': numbers, 'out/min_distance_sq': squared[:, 0]}
    fields = meta_mbpa.SETTINGS | dict(
        train_steps=settings['adapt_steps'],
        train_rate=settings['adapt_lr'],
        adapt_rate=settings['adapt_lr'],
        adapt_anchor=settings['adapt_lambda'],
        adapt_steps=settings['coarse_steps'],
        chunk=3,
    )
    there = jnp.ones(len(batch), bool)
    for order in meta_mbpa.ORDERS:
        training = meta_mbpa.in_training(fields | dict(order=order))
        result = adaptation.meta_gradient(
            network, params, stream, batch, there, numbers, found, training
        )
        ours |= {f'out/loss_{order}': result.losses, f'out/logits_{order}': result.scores}
        gradient = stub.named(result.gradient, 'model.bert', 'model.classifier')
        ours |= {f'grad/{name}_{order}': leaf for name, leaf in gradient.items()}
    drawn = jnp.asarray(arrays['in/coarse_index'])
    coarse = adaptation.adapt_once(
        network, params, stream, drawn, jnp.ones(drawn.shape, bool), meta_mbpa.at_test(fields)
    )
    ours |= {
        'out/base_logits': steps.predict_rows(network, params, batch, 2),
        'out/coarse_logits': steps.predict_rows(network, coarse, batch, 2),
    }
    yield from stub.matched(ours, arrays)
