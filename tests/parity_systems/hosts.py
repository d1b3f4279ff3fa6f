"""Hugging Face models from their folders: outputs, hidden vectors, gradients, decoding with a cache.

The checkpoint is the folder `hf` beside the file. Decoding reads segments as long as the prefix, so that
the cache goes through the state at every border.
"""

import functools
from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.generation.reader import Reader, fresh_state
from longmem_jax.generation.stream import close_stream, open_stream, read_token
from longmem_jax.hosts import hosts
from longmem_jax.hosts.own_layers import rows_of
from longmem_jax.hosts.patterns import layout
from longmem_jax.models.block import Block
from longmem_jax.models.inspect import capture
from longmem_jax.segment import Segment

DECODERS = (
    'gpt2', 'gpt_neo', 'gpt_neox', 'llama', 'llama3_scaled', 'mistral', 'qwen2', 'qwen3',
)  # fmt: skip
HYBRIDS = ('qwen3_next', 'olmo_hybrid')
NAMES = (*DECODERS, 'bert')
EXPERTS = 'qwen3_moe'
LATER = ('smollm3', 'phi3', 'gemma3_text', 'olmo2', 'olmo3')


def check(settings, arrays):
    """Yields (name, ours, reference) for every tensor of the golden."""
    name = settings.get('hf', settings.get('checkpoint', 'hf'))
    length = arrays['in/tokens'].shape[1]
    host = _found(Path(settings['folder']) / name, length)
    if 'in/prefix_length' in arrays:
        length = int(arrays['in/prefix_length'])
    model = hosts.make(host.model, length)
    params = hosts.load(host, model, report=lambda line: None)
    tokens = jnp.asarray(arrays['in/tokens'], jnp.int32)
    mask = jnp.asarray(arrays.get('in/attention_mask', np.ones(tokens.shape)), bool)
    if host.model.kind == 'text_encoder':
        yield from _encoder(model, params, tokens, mask, arrays)
    elif 'in/prefix_length' in arrays:
        yield from _decode(model, params, tokens, length, arrays)
    else:
        yield from _forward(model, params, tokens, mask, arrays)
    if any(name.startswith('grad/') for name in arrays):
        yield from _gradients(host, model, params, tokens, mask, arrays)


def _found(folder, length):
    """The host, with a window for so many tokens: a longer one is never filled."""
    try:
        return hosts.find(folder, context=length)
    except UsageError:  # it was trained with fewer; rotary positions have no end
        host = hosts.find(folder)
        for name in {*host.model.attention} & {*host.model}:
            if 'window' in host.model[name]:
                host.model[name].window = length
        return host


def _valid(mask, array):
    return jnp.where(mask[..., None], array, jnp.zeros_like(array))


def _types(arrays):
    return jnp.asarray(arrays.get('in/token_type_ids', 0 * arrays['in/tokens']), jnp.int32)


def _segment(tokens, mask):
    return Segment(tokens, mask, jnp.ones(tokens.shape[:1], bool))


def _forward(model, params, tokens, mask, arrays):
    """Logits, and hidden vectors: embeddings, the output of every block, the last one normalised."""

    @jax.jit
    def read(params):
        state = fresh_state(model, params, len(tokens))
        segment = _segment(tokens, mask)
        with capture(Block, lambda block, x, *rest: x) as inputs:
            last, _, _ = model.apply(
                {'params': params}, segment, state, train=False, method='hidden'
            )
        logits, _, _ = model.apply({'params': params}, segment, state, train=False)
        return logits, [*inputs, last]

    logits, hidden = read(params)
    yield 'out/logits', _valid(mask, logits), _valid(mask, arrays['out/logits'])
    for number, ours in enumerate(hidden):
        name = f'out/hidden_{number}'
        if name in arrays:
            yield name, _valid(mask, ours), _valid(mask, arrays[name])


def _decode(model, params, tokens, prefix, arrays):
    """The prefix as one segment, then token by token; greedy decoding of the first row."""
    segment = _segment(tokens[:, :prefix], jnp.ones((len(tokens), prefix), bool))
    state = fresh_state(model, params, len(tokens))
    logits, state, _ = jax.jit(model.apply, static_argnames='train')(
        {'params': params}, segment, state, train=False
    )
    yield 'out/prefix_logits', logits, arrays['out/prefix_logits']
    step = jax.jit(lambda token, stream: read_token(model, params, token, stream))
    stream, found = open_stream(model, params, state, len(tokens)), [logits[:, -1]]
    for position in range(prefix, tokens.shape[1]):
        logits, stream = step(tokens[:, position], stream)
        found.append(logits)
    # Some files begin with the logits after the prefix, some with those after the next token.
    reference = arrays['out/decode_logits']
    yield 'out/decode_logits', np.stack(found, axis=1)[:, -reference.shape[1] :], reference
    states = close_stream(model, params, stream)
    for layer, block in enumerate(getattr(states, 'blocks', states)):
        for ours in ('key', 'value'):
            name = f'state/{ours}_layer{layer}'
            if name in arrays:
                cache = getattr(block.attention, f'{ours}s')
                kept = min(int(block.attention.count[0]), arrays[name].shape[2])
                yield name, cache[:, :, -kept:], arrays[name][:, :, -kept:]
    greedy = arrays['out/greedy'].reshape(-1)
    start = np.asarray(tokens[:1, :prefix])
    if np.array_equal(greedy[:prefix], start[0]):
        greedy = greedy[prefix:]
    reader = Reader(model, params, fresh_state(model, params, 1), start)
    options = dict(vocab_size=model.config.vocab_size, temperature=0.0, top_k=0, top_p=1.0, seed=0)
    written = np.concatenate(list(reader.write(len(greedy), **options)), axis=1)
    yield 'out/greedy', written[0], greedy


def _encoder(model, params, tokens, mask, arrays):
    """Hidden vectors after every layer, and the pooled ones."""
    types = _types(arrays)

    @jax.jit
    def read(params):
        def layers(model):
            return list(model.layers(tokens, mask, types, train=False))

        _, pooled = model.apply({'params': params}, tokens, mask, types, train=False)
        return model.apply({'params': params}, method=layers), pooled

    hidden, pooled = read(params)
    for number, ours in enumerate(hidden):
        name = f'out/hidden_{number}'
        if name in arrays:
            yield name, _valid(mask, ours), _valid(mask, arrays[name])
    if 'out/last_hidden' in arrays:
        yield 'out/last_hidden', _valid(mask, hidden[-1]), _valid(mask, arrays['out/last_hidden'])
    if 'out/pooled' in arrays:
        yield 'out/pooled', pooled, arrays['out/pooled']


def _gradients(host, model, params, tokens, mask, arrays):
    """Gradients of weighted outputs, under the names of the files."""

    def loss(params):
        if host.model.kind == 'text_encoder':
            types = _types(arrays)
            hidden, pooled = model.apply({'params': params}, tokens, mask, types, train=False)
            total = (_valid(mask, hidden) * arrays['in/loss_weight']).sum()
            if 'in/loss_weight_pooled' in arrays:
                total += (pooled * arrays['in/loss_weight_pooled']).sum()
            return total
        state = fresh_state(model, params, len(tokens))
        logits, _, _ = model.apply({'params': params}, _segment(tokens, mask), state, train=False)
        return (_valid(mask, logits) * arrays['in/loss_weight']).sum()

    gradient = jax.jit(jax.grad(loss))(params)
    flat = flax.traverse_util.flatten_dict(gradient, sep='/')
    family, ours = host.family, {}
    for row in rows_of(family, host.model):
        if all(path in flat for path in row.ours):
            leaves = [np.asarray(flat[path]) for path in row.ours]
            name, joined = host.name_of(row), layout(row.layout).put(leaves)
            name = name or family.prefixed(row.theirs)
            if pieces := host.files.pieces.get(name):
                parts = pieces.cut(functools.partial(np.asarray, joined))
                ours |= {part: made() for part, made in parts.items()}
            else:
                ours[name] = joined
    for name in sorted(arrays):
        if name.startswith('grad/'):
            theirs = name[len('grad/') :]
            plain = theirs.removeprefix(family.prefix)  # as the files or the goldens may have it
            names = (family.heads[0] if theirs in family.heads else plain, family.prefix + plain)
            yield name, next(ours[each] for each in names if each in ours), arrays[name]
