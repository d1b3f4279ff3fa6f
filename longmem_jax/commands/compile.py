"""`--mode=compile`: the training step compiled ahead of time for TPUs or GPUs that are not there.

Prints the memory and operations per chip, and whether the step fits. Needs the extra `[tpu-aot]`
(libtpu), which nothing else imports, or `[cuda12]`.
"""

import dataclasses
import os
import time
from typing import Any

import jax
from jax.experimental import topologies

from longmem_jax.config import checks
from longmem_jax.config.sections import in_use, sections
from longmem_jax.devices import gpus, hardware, operations, sharding
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment, lower_step
from longmem_jax.registry import load


@dataclasses.dataclass(frozen=True)
class Fit:
    """What a compiled step needs per chip.

    Attributes:
      chips: devices of the slice, as JAX counts them.
      kind: name of the device type.
      arguments, temporaries, output, aliased, code: bytes; `aliased` output reuses the memory of
        donated arguments.
      flops: operations of the products of one step.
      at_most: they are those of the largest branches, and others may be taken.
      moved: bytes that XLA counts as read or written in one step, bodies of loops once.
      capacity: bytes of memory of a chip; 0 = unknown.
      seconds: time to compile.
    """

    chips: int
    kind: str
    arguments: int
    temporaries: int
    output: int
    aliased: int
    code: int
    flops: float
    moved: float
    at_most: bool
    capacity: float
    seconds: float

    @property
    def total(self) -> int:
        """Bytes in use at the peak."""
        return self.arguments + self.temporaries + self.output - self.aliased + self.code


def find_topology(name: str) -> Any:
    """The devices of a TPU slice such as 'v5e:4x4', or GPUs such as 'h100:8'; they need not be attached.

    Raises:
      UsageError: no name, a compiler that is not installed, or a slice that libtpu does not know.
    """
    if not name:
        raise UsageError('--mode=compile needs --topology=, such as v5e:4x4, v5p:2x2x1 or h100:8.')
    if found := gpus.parsed(name):
        return _gpus(*found)
    known = ', '.join(gpus.GPUS)
    # Otherwise libtpu asks the cloud's metadata server, which may not exist here.
    os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
    os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
    # No TPU is used, so another process may have it, or have left its lock.
    os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
    try:
        import libtpu  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f'--topology={name}: none of the GPUs {known} (such as h100:8), and for TPUs '
            "--mode=compile needs libtpu: pip install 'longmem_jax[tpu-aot]'."
        ) from error
    try:
        return topologies.get_topology_desc(name, platform='tpu')
    except (RuntimeError, ValueError, jax.errors.JaxRuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f'--topology={name}: not a slice that libtpu knows ({reason}), and none of the GPUs '
            f'{known}.'
        ) from error


def _gpus(gpu: gpus.Gpu, number: int) -> Any:
    """The devices of one machine with GPUs."""
    # Otherwise the plugin asks the driver, which is there only with a GPU.
    os.environ.setdefault('JAX_SKIP_CUDA_CONSTRAINTS_CHECK', '1')
    try:
        return topologies.get_topology_desc(
            gpu.kind, 'cuda', topology=f'1x1x{number}', target_config=gpu.target()
        )
    except NotImplementedError as error:  # JAX has no plugin for CUDA
        raise UsageError(
            "--mode=compile for GPUs needs JAX's plugin: pip install 'longmem_jax[cuda12]'."
        ) from error


def compile_step(config: Any, topology: str) -> tuple[Any, Fit]:
    """Compiles the training step for a TPU slice, such as 'v5e:4x4', or for GPUs, such as 'h100:8'.

    Returns the program and what it needs. Lifelong learners need their data here, since the rows of
    the stream are in the program's shapes.

    Raises:
      UsageError: problems of the configuration on this number of chips, or of the topology.
    """
    devices = find_topology(topology).devices
    checks.require_runnable(config, len(devices))
    mesh = sharding.make_mesh(config.mesh.to_dict(), devices)
    began = time.monotonic()
    used = [section for name, section in sections().items() if in_use(config, name)]
    lower = next((load(section.lower) for section in used if section.lower), None)
    if lower is not None:
        lowered = lower(config, mesh)
        compiled = lowered.compile()
    else:
        with jax.set_mesh(mesh):
            experiment = Experiment(config, None, mesh)  # type: ignore[arg-type]  # no folder is used
            lowered = lower_step(experiment)
            compiled = lowered.compile()
    seconds = time.monotonic() - began
    memory = compiled.memory_analysis()
    return compiled, Fit(
        chips=len(devices),
        kind=devices[0].device_kind,
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        output=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=operations.count(lowered, len(devices)),
        moved=float((compiled.cost_analysis() or {}).get('bytes accessed', 0.0)),
        at_most=operations.has_branches(lowered),
        capacity=hardware.memory_bytes(devices[0]),
        seconds=seconds,
    )


def compile_for(config: Any, topology: str) -> Fit:
    """Compiles the training step and prints the table; errors as in `compile_step`."""
    _, fit = compile_step(config, topology)
    train = config.train
    tokens = train.num_lanes * train.segment_length * train.segments_per_step
    print(f'Training step for {fit.chips} x {fit.kind} ({topology}), {tokens:,} tokens per step')
    for name in ('arguments', 'temporaries', 'output', 'aliased', 'code', 'total'):
        print(f'  {name:<12}{getattr(fit, name) / 2**30:9.3f} GiB per chip')
    if fit.flops:  # not for GPUs
        bound = ', at most' if fit.at_most else ''
        print(f'  {"operations":<12}{fit.flops:9.3e} per chip and step{bound}')
        once = ', segments once' if train.segments_per_step > 1 else ''
        print(f"  {'moved':<12}{fit.moved / 1e9:9.2f} GB per chip and step by XLA's count{once}")
    print(f'  compiled in {fit.seconds:.0f} s')
    if not fit.capacity:
        print('  The memory size of this chip is unknown.')
    else:
        share = fit.total / fit.capacity
        verdict = 'fits' if share <= 1 else 'DOES NOT FIT'
        print(f'  {verdict}: {share:.0%} of {fit.capacity / 2**30:.1f} GiB')
    return fit
