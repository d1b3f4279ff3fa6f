"""A lifelong learner with its stream, from a configuration."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from longmem_jax.data.load import learned, make_tokenizer
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError, say
from longmem_jax.hosts.model_fields import differences
from longmem_jax.lifelong import encoders, settings, stream
from longmem_jax.lifelong.data.labelled import LABELLED, Asked, Read, Wanted
from longmem_jax.lifelong.data.texts import Texts
from longmem_jax.lifelong.learner import Learner, LearnerState
from longmem_jax.lifelong.methods.registry import METHODS
from longmem_jax.lifelong.network import Encoded, Encoder, Network
from longmem_jax.lifelong.rows import Inputs, Rows
from longmem_jax.training.identity import model_of
from longmem_jax.training.optimizer import make_optimizer


@dataclasses.dataclass(frozen=True)
class Spread:
    """An encoder whose texts are split over the devices of a mesh, where they divide."""

    inner: Encoder
    mesh: Mesh

    @property
    def width(self) -> int:
        return self.inner.width

    def init(self, key: jax.Array) -> Any:
        return self.inner.init(key)

    def _split(self, inputs: Inputs) -> Inputs:
        axes = sharding.RULES['lanes']
        if self.mesh.size == 1 or len(inputs.tokens) % sharding.num_shards(self.mesh, 'lanes'):
            return inputs
        by_text = NamedSharding(self.mesh, P(axes))
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, by_text), inputs)

    def encode(self, params: Any, inputs: Inputs, key: jax.Array | None) -> Encoded:
        return self.inner.encode(params, self._split(inputs), key)

    def key_of(self, params: Any, inputs: Inputs) -> jax.Array:
        return self.inner.key_of(params, self._split(inputs))


@dataclasses.dataclass(frozen=True)
class Built:
    """Everything that a configuration for lifelong learning describes, made when it is first used.

    Attributes:
      config: the whole configuration.
      workdir: for a vocabulary that is learned; None = there is none.
      mesh: devices.
      report: called with lines for the user.
    """

    config: Any
    workdir: Path | None
    mesh: Mesh
    report: Callable[[str], None] = say

    @functools.cached_property
    def read(self) -> Read:
        """The content of the data files."""
        return LABELLED[self.config.data.source].read(self.config.data)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """That of the encoder's folder, or one that is learned from the texts of the stream."""
        given = self.config.data.tokenizer
        if given.path or given.kind != 'wordpiece':
            tokenizer = make_tokenizer(self.config.data, self.workdir)
        else:
            tokenizer = learned(self.config.data, self.workdir, lambda: Texts(self.read.texts()))
        size = self.config.model.vocab_size
        if tokenizer.vocab_size > size:
            raise UsageError(
                f'config.model.vocab_size = {size}: the tokenizer has {tokenizer.vocab_size} tokens.'
            )
        return tokenizer

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder, pretrained if `config.train.start_from` is set.

        Raises:
          UsageError: no such folder, or `config.model` is another model.
        """
        model = self.config.model
        given = dict(dropout=model.residual_dropout, dtype=model.dtype)
        plain = encoders.untrained(model, **given)
        if not self.config.train.start_from:
            return plain
        found = encoders.from_folder(
            self.config.train.start_from,
            self.config.train.segment_length,
            report=self.report,
            **given,
        )
        if changed := differences(found.module.config, plain.module.config):
            raise UsageError(
                f'config.train.start_from = {self.config.train.start_from}: config.model is another '
                'model:\n  ' + '\n  '.join(changed)
            )
        return found

    @functools.cached_property
    def asked(self) -> Asked:
        """The tasks and their head."""
        data, given = self.config.data, self.config.lifelong
        wanted = Wanted(
            self.read.content, data, given.order, self.tokenizer, lambda: self.encoder,
            self.report, given.stream == settings.JOINT,
        )  # fmt: skip
        return LABELLED[data.source].tasks(wanted)

    @functools.cached_property
    def stream(self) -> stream.Stream:
        """The rows in the order in which they are read; numpy arrays.

        Raises:
          UsageError: `config.lifelong.stream` is neither 'tasks', 'joint' nor a task.
        """
        given, seed = self.config.lifelong, self.config.data.seed
        tasks, order = self.asked.tasks, self.asked.order
        if given.stream == settings.TASKS:
            return stream.in_order(tasks, order, seed)
        if given.stream == settings.JOINT:
            return stream.joint(tasks, order, seed, given.epochs)
        if given.stream not in tasks:
            raise UsageError(
                f'config.lifelong.stream = {given.stream!r}: allowed are {settings.TASKS}, '
                f'{settings.JOINT}, or one of {", ".join(tasks)}.'
            )
        return stream.single(tasks, given.stream, seed, given.epochs)

    @functools.cached_property
    def rows(self) -> Rows:
        """The rows of the stream on the devices, all of them on each."""
        return self.placed(self.stream.rows)

    def placed(self, rows: Rows) -> Rows:
        """Rows on the devices."""
        return jax.device_put(rows, sharding.replicated(self.mesh))

    @functools.cached_property
    def network(self) -> Network:
        """Encoder and head."""
        return Network(Spread(self.encoder, self.mesh), self.asked.head)

    @functools.cached_property
    def _unread(self) -> Network:
        """The network with random parameters: their shapes need no files."""
        return Network(encoders.untrained(self.config.model), self.asked.head)

    @functools.cached_property
    def fields(self) -> Any:
        """The method's settings; its memory has no room for more rows than the stream has.

        Raises:
          UsageError: more neighbours than the stream has rows.
        """
        name, rows = self.config.lifelong.method, len(self.stream.rows)
        fields = self.config.lifelong[name].copy_and_resolve_references()
        if 'capacity' in fields:
            fields.capacity = min(fields.capacity, rows)
        neighbours = fields.get('num_neighbours', 0)
        if 0 < fields.get('capacity', 0) < neighbours:
            raise UsageError(
                f'config.lifelong.{name}.num_neighbours = {neighbours}: the stream has {rows:,} rows, '
                'and its memory no more; lower num_neighbours, or give the stream more rows.'
            )
        return fields

    @functools.cached_property
    def learner(self) -> Learner:
        """The method."""
        return self._learner(self.network)

    def _learner(self, network: Network) -> Learner:
        config, key = self.config, jax.random.key(0)
        method = METHODS[config.lifelong.method]
        shapes = jax.eval_shape(lambda: method.parameters(self._unread, self.fields, key))
        optimizer = make_optimizer(config.optimizer, config.train.num_steps, shapes)
        return method.make(network, self.fields, optimizer, config.train.num_lanes)

    def first_state(self) -> LearnerState:
        """The state at the start of the stream, on all devices."""
        state = self.learner.init(jax.random.key(self.config.train.seed))
        # A step donates its state, and two leaves may be one buffer.
        return jax.device_put(jax.tree.map(jnp.copy, state), sharding.replicated(self.mesh))

    @functools.cached_property
    def abstract_state(self) -> LearnerState:
        """Shapes, dtypes and shardings of the state."""
        everywhere = sharding.replicated(self.mesh)
        shapes = jax.eval_shape(self._learner(self._unread).init, jax.random.key(0))
        return sharding.abstract(shapes, everywhere)

    def lower_step(self) -> jax.stages.Lowered:
        """The step for the devices of the mesh, which need not be attached; call `.compile()`."""
        network = Network(Spread(encoders.untrained(self.config.model), self.mesh), self.asked.head)
        learner, everywhere = self._learner(network), sharding.replicated(self.mesh)
        rows = sharding.abstract(self.stream.rows, everywhere)
        jitted = jax.jit(learner.observe, out_shardings=everywhere, donate_argnums=0)
        return jitted.lower(self.abstract_state, rows)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must match: the method, the encoder, and the stream, row by row."""
        config = self.config
        return {
            'config.train.seed': config.train.seed,
            'config.data.source': config.data.source,
            'config.data.seed': config.data.seed,
            'config.data.task': {
                name: value
                for name, value in config.data.task.items()
                if name not in ('clusters', 'vectors')  # files, which may be moved
            },
            'config.lifelong.order': config.lifelong.order,
            'config.lifelong.stream': config.lifelong.stream,
            'config.lifelong.epochs': config.lifelong.epochs,
            'config.lifelong.method': config.lifelong.method,
            f'config.lifelong.{config.lifelong.method}': config.lifelong[
                config.lifelong.method
            ].to_dict(),
            'config.model': model_of(config),
            'config.train.num_lanes': config.train.num_lanes,
            'config.optimizer.name': config.optimizer.name,
            'tokenizer': self.tokenizer.fingerprint(),
            'stream': fingerprint(self.stream.rows),
        }


def fingerprint(rows: Rows) -> str:
    """A digest of rows in their order."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(rows):
        digest.update(f'{leaf.dtype} {leaf.shape}'.encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]
