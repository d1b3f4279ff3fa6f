"""GPUs that need not be attached: what XLA must know of them to compile for them.

The numbers are those that CUDA reports, from the vendor's data sheets and tuning guides.
"""

import dataclasses
import re
from typing import Any


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A kind of GPU, which `jax.experimental.topologies` can compile for.

    Attributes:
      kind: as JAX names the device.
      capability: major and minor number of the architecture.
      cores: multiprocessors.
      flops: dense bfloat16 operations per second.
      memory: bytes.
      bandwidth: bytes per second.
      cache: bytes of the second level.
      shared: bytes of shared memory of a multiprocessor; a block can have 1,024 less.
      clock: GHz.
    """

    kind: str
    capability: tuple[int, int]
    cores: int
    flops: float
    memory: float
    bandwidth: float
    cache: int
    shared: int
    clock: float

    def target(self) -> str:
        """XLA's `GpuTargetConfigProto` as text."""
        fields: dict[str, Any] = dict(
            threads_per_block_limit=1024, threads_per_warp=32, shared_memory_per_block=48 << 10,
            shared_memory_per_core=self.shared, threads_per_core_limit=2048, core_count=self.cores,
            fpus_per_core=64 if self.capability < (9, 0) else 128, block_dim_limit_x=(1 << 31) - 1,
            block_dim_limit_y=65535, block_dim_limit_z=65535, memory_bandwidth=int(self.bandwidth),
            l2_cache_size=self.cache, clock_rate_ghz=self.clock, device_memory_size=int(self.memory),
            shared_memory_per_block_optin=self.shared - 1024, registers_per_core_limit=65536,
            registers_per_block_limit=65536,
        )  # fmt: skip
        known = '\n'.join(f'  {name}: {value}' for name, value in fields.items())
        version = 'cuda_compute_capability {{ major: {} minor: {} }}'.format(*self.capability)
        return (
            f'gpu_device_info {{\n{known}\n  {version}\n}}\n'
            'platform_name: "CUDA"\ndnn_version_info { major: 9 minor: 8 }\n'
            f'device_description_str: "{self.kind}"\n'
        )


GPUS = {
    'a100': Gpu(
        'NVIDIA A100-SXM4-80GB', (8, 0), 108, 312e12, 85e9, 2.04e12, 40 << 20, 164 << 10, 1.41
    ),
    'h100': Gpu(
        'NVIDIA H100 80GB HBM3', (9, 0), 132, 989e12, 85e9, 3.35e12, 50 << 20, 228 << 10, 1.98
    ),
    'h200': Gpu('NVIDIA H200', (9, 0), 132, 989e12, 150e9, 4.8e12, 60 << 20, 228 << 10, 1.98),
}
NAME = re.compile(rf'({"|".join(GPUS)})(?::([1-9]\d*))?')


def parsed(name: str) -> tuple[Gpu, int] | None:
    """The kind of GPU and their number in one machine, of a name such as 'h100' or 'h100:8'."""
    match = NAME.fullmatch(name)
    return (GPUS[match[1]], int(match[2] or 1)) if match else None
