"""Our side of a case, to be timed: forward and backward, and Adam where the case has it; or a prompt."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.speed.bench import draw, random_batch
from experiments.speed.cases import Case, Sizes
from longmem_jax.config.base import size
from longmem_jax.configs import benchmark, host
from longmem_jax.contract import ModelSettings, identity
from longmem_jax.generation import cache
from longmem_jax.generation.reader import Reader
from longmem_jax.hosts import hosts
from longmem_jax.memory.product_key import ProductKeyMemory
from longmem_jax.models.kinds import make_model
from longmem_jax.models.language_model import LanguageModel
from longmem_jax.models.parameters import initial_parameters, unbox
from longmem_jax.segment import Segment
from longmem_jax.standalone import make_layer
from longmem_jax.training.step import read_batch

STREAM = 8  # segments of random tokens that are read in turn


@dataclasses.dataclass(frozen=True)
class Step:
    """A step to be timed; calling it waits for all results and returns the loss.

    Attributes:
      call: does so.
      lower: the same program, lowered; None for prompts, which have several.
    """

    call: Callable[[], float]
    lower: Callable[[], jax.stages.Lowered] | None

    def __call__(self) -> float:
        """See `call`."""
        return self.call()


def model(case: Case, sizes: Sizes) -> Step:
    """Steps of a language model, each with the next segment and the memories of the one before."""
    config = benchmark.get_config(case.config)
    size(config, sizes.layers, sizes.width, sizes.heads, sizes.feed_forward)
    config.model.vocab_size = sizes.vocab
    config.train.segment_length, config.train.num_lanes = sizes.segment, sizes.lanes
    config.train.segments_per_step = 1
    config.update_from_flattened_dict(case.changes)
    built = make_model(config.model, sizes.segment)
    params = unbox(jax.jit(lambda: initial_parameters(built, jax.random.key(0)))())
    make_state = jax.jit(
        lambda params: built.apply({'params': params}, sizes.lanes, method='initial_state')
    )
    stream = random_batch(config, config.train, STREAM)
    batches = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], stream) for i in range(STREAM)]

    def objective(params: Any, memory: Any, batch: Any) -> Any:
        loss, (memory, _, _) = read_batch(
            built, params, memory, batch, jax.random.key(1), config.train
        )
        return loss, memory

    step = jax.jit(jax.value_and_grad(objective, has_aux=True), donate_argnums=1)
    memory, count = make_state(params), 0

    def call() -> float:
        nonlocal memory, count
        (loss, memory), gradients = step(params, memory, batches[count % STREAM])
        count += 1
        jax.block_until_ready((loss, memory, gradients))
        return float(loss)

    return Step(call, lambda: step.lower(params, memory, batches[0]))


def layer(case: Case, sizes: Sizes) -> Step:
    """Steps of one product-key layer: all gradients, and Adam if the case says so."""
    shape = (sizes.lanes, sizes.segment, sizes.width)
    settings = ModelSettings(
        d_model=sizes.width,
        num_heads=sizes.heads,
        head_dim=sizes.head_dim,
        d_feed_forward=sizes.feed_forward,
        num_layers=1,
        segment_length=sizes.segment,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=0.02,
        dtype=jnp.dtype('float32'),
    )
    slots = ProductKeyMemory(settings=settings, normalize=identity, shared=None, **case.layer)
    x, weights = (
        jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32) for seed in (0, 1)
    )
    segment = Segment(
        jnp.zeros(shape[:2], jnp.int32), jnp.ones(shape[:2], bool), jnp.zeros(shape[:1], bool)
    )
    params = unbox(jax.jit(lambda: slots.init(jax.random.key(0), x, None, segment, train=True))())[
        'params'
    ]

    def loss(params: Any, x: jax.Array) -> jax.Array:
        y, _, _ = slots.apply({'params': params}, x, None, segment, train=True)
        return (y * weights).sum()

    slopes = jax.value_and_grad(loss, (0, 1))
    if not case.adam:
        step = jax.jit(slopes)

        def call() -> float:
            value, _ = jax.block_until_ready(step(params, x))
            return float(value)

        return Step(call, lambda: step.lower(params, x))

    optimizer = optax.adam(1e-3)

    def update(params: Any, moments: Any, x: jax.Array) -> Any:
        value, (of_params, of_x) = slopes(params, x)
        changes, moments = optimizer.update(of_params, moments)
        return value, of_x, (optax.apply_updates(params, changes), moments)

    learn = jax.jit(update, donate_argnums=(0, 1))
    kept = (params, optimizer.init(params))

    def call_and_learn() -> float:
        nonlocal kept
        value, _, kept = jax.block_until_ready(learn(*kept, x))
        return float(value)

    return Step(call_and_learn, lambda: learn.lower(*kept, x))


def starts(sizes: Sizes, documents: int) -> np.ndarray:
    """Where documents begin inside of a segment, bool [lanes, segment]; without any none [lanes]."""
    if not documents:
        return np.zeros(sizes.lanes, bool)
    start = np.zeros((sizes.lanes, sizes.segment), bool)
    for lane in range(sizes.lanes):
        for document in range(documents):  # in every lane elsewhere
            start[lane, (document + 1) * sizes.segment // (documents + 1) + lane - 1] = True
    return start


def recurrent(case: Case, sizes: Sizes, documents: int = 0) -> Step:
    """Steps of one recurrent layer: the gradients of its parameters and of what it reads.

    `documents` begin inside of every row, `start` being [lanes, segment]; without any it is [lanes].
    """
    fields = dict(case.layer)
    config = benchmark.get_config(f'memory={fields.pop("memory")}')
    name = config.model.attention[0]
    layer = make_layer(
        name,
        d_model=sizes.width,
        num_heads=sizes.heads,
        head_dim=sizes.head_dim,
        segment_length=sizes.segment,
        **(config.model[name].to_dict() | fields),
    )
    shape = (sizes.lanes, sizes.segment, sizes.width)
    x, weights = (
        jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32) for seed in (0, 1)
    )
    start = starts(sizes, documents)
    state = layer.start(sizes.lanes)
    params = jax.jit(lambda: layer.init(jax.random.key(0), x, state))()['params']

    def loss(params: Any, x: jax.Array, state: Any, start: jax.Array) -> Any:
        y, state, _ = layer.apply({'params': params}, x, state, start=start)
        return (y * weights).sum(), state

    step = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))

    def call() -> float:
        nonlocal state
        (value, state), _ = jax.block_until_ready(step(params, x, state, start))
        return float(value)

    return Step(call, lambda: step.lower(params, x, state, start))


def prompt(case: Case, sizes: Sizes, folder: str = '') -> Step:
    """Steps that read prompts from their start and continue them, by the most likely tokens.

    Args:
      folder: of a pretrained decoder; '' = a GPT-2 of these `sizes` with new parameters.
    """
    path = f'path={folder},' * bool(folder)
    config = host.get_config(f'{path}memory=none,segment={sizes.segment}')
    if not folder:
        size(config, sizes.layers, sizes.width, sizes.heads, sizes.feed_forward)
        config.model.vocab_size = sizes.vocab
    # Its cache is as long as the text, as in `--mode=generate` and in the peer.
    made, read = make_model(config.model, sizes.segment), case.prompt + case.drawn - 1
    built = cache.for_texts(made, read, in_one_segment=case.texts)
    params = hosts.load(hosts.find(folder), built) if folder else _new(built)
    texts, words = case.texts, config.model.vocab_size
    # As in the peer.
    tokens = np.random.default_rng(0).integers(0, words, (texts, case.prompt)).astype(np.int32)

    def call() -> float:
        reader = Reader(built, params, lanes=texts)
        reader.read(tokens)
        if case.drawn > 1:
            draw(reader, case.drawn - 1, words, temperature=0.0, chunk=16)
        return float(reader.logits[0].argmax())

    return Step(call, None)


def _new(model: LanguageModel) -> Any:
    """New parameters, one by one: `initial_parameters` would need more memory than the step."""
    random = np.random.default_rng(0)

    def drawn(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        array = random.standard_normal(leaf.shape, np.float32)
        array *= 0.02
        return jnp.asarray(array)

    return jax.tree.map(
        drawn, jax.eval_shape(lambda: unbox(initial_parameters(model, jax.random.key(0))))
    )


def build(case: Case, sizes: Sizes, folder: str = '') -> Step:
    """The step of a case: forward and backward, or a prompt of the decoder in `folder`."""
    if case.prompt:
        return prompt(case, sizes, folder)
    if case.config is None:
        return (recurrent if 'memory' in case.layer else layer)(case, sizes)
    return model(case, sizes)
