"""An agent with its environment, from a configuration."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
from jax.sharding import Mesh

from longmem_jax.agents import learning, settings
from longmem_jax.agents.environments.interface import Environment
from longmem_jax.agents.learning import AgentState
from longmem_jax.devices import initial, sharding
from longmem_jax.models.kinds import make_model
from longmem_jax.models.parameters import abstract_parameters, unbox
from longmem_jax.training.checkpoint import FORMAT
from longmem_jax.training.identity import model_of
from longmem_jax.training.optimizer import make_optimizer, make_schedule


@dataclasses.dataclass(frozen=True)
class Built:
    """Everything that a configuration of an agent describes, made when it is first used."""

    config: ml_collections.ConfigDict
    mesh: Mesh

    @functools.cached_property
    def environment(self) -> Environment:
        """The environment; raises `UsageError` with all problems of the configuration."""
        return settings.make_environment(self.config, sharding.num_shards(self.mesh, 'lanes'))

    @functools.cached_property
    def model(self) -> Any:
        """The agent."""
        return make_model(self.config.model, self.config.train.segment_length)

    @functools.cached_property
    def optimizer(self) -> Any:
        """The optax transformation, for as many updates as the run has."""
        shapes = unbox(abstract_parameters(self.model))
        return make_optimizer(self.config.optimizer, self._updates, shapes)

    @property
    def _updates(self) -> int:
        given = self.config.reinforcement
        return self.config.train.num_steps * given.epochs * given.minibatches

    @functools.cached_property
    def make_state(self) -> Callable[[], AgentState]:
        """A function that makes the state of step 0."""
        train = self.config.train
        return learning.make_initial_state(
            self.model, self.optimizer, self.environment, train.num_lanes, train.seed
        )

    @functools.cached_property
    def abstract_state(self) -> AgentState:
        """Shapes, dtypes and shardings of the state: parameters by axes, lanes by lanes."""
        mesh, abstract = self.mesh, jax.eval_shape(self.make_state)
        params = sharding.parameter_shardings(mesh, abstract_parameters(self.model))
        optimizer = sharding.like_parameters(abstract.optimizer, abstract.params, params, mesh)
        by_lanes = jax.tree.map(lambda _: sharding.lanes_sharding(mesh), abstract.lanes)
        memory = sharding.memory_shardings(mesh, abstract.lanes.memory)
        placed = jax.tree.map(lambda _: sharding.replicated(mesh), abstract).replace(
            params=params, optimizer=optimizer, lanes=by_lanes.replace(memory=memory)
        )
        return sharding.abstract(abstract, placed)

    @functools.cached_property
    def state_shardings(self) -> AgentState:
        """The sharding of every leaf of the state."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

    def first_state(self) -> AgentState:
        """The state of step 0, on the devices."""
        return initial.arrays(self.make_state, self.state_shardings)

    def lower_step(self) -> jax.stages.Lowered:
        """The training step; call `.compile()` to run it."""
        schedule = make_schedule(self.config.optimizer, self._updates)
        step = learning.make_step(
            self.model, self.environment, self.optimizer, schedule, self.config
        )
        everywhere = sharding.replicated(self.mesh)
        jitted = jax.jit(step, out_shardings=(self.state_shardings, everywhere), donate_argnums=0)
        return jitted.lower(self.abstract_state)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must match."""
        config = self.config
        return {
            'format': FORMAT,
            'config.model': model_of(config),
            'config.reinforcement.environment': config.reinforcement.environment,
            'config.reinforcement.task': config.reinforcement.task.to_dict(),
            'config.train.num_lanes': config.train.num_lanes,
            'config.optimizer.name': config.optimizer.name,
        }

    def learning(self) -> dict[str, Any]:
        """The fields of `config.reinforcement` that may differ where training continues."""
        others = ('environment', 'task', 'episodes', 'test_episodes')
        given = self.config.reinforcement.to_dict()
        return {name: value for name, value in given.items() if name not in others}
