"""Settings of the tests' processes, which compile tiny programs and run them once."""

import importlib.metadata
import os
from typing import Any

# Compiling is nearly all of the time.
FAST = '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
if importlib.metadata.version('jaxlib').startswith('0.10.'):
    # XLA refuses to start with a flag that it does not know.
    FAST += ' --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'


def environment(devices: int = 1, cache: Any = None) -> dict[str, str]:
    """Environment variables of a process with virtual CPU devices.

    Args:
      devices: virtual CPU devices.
      cache: folder of compiled programs, for processes that run one after the other; entries are
        not written in one piece.
    """
    flags = f'{FAST} --xla_force_host_platform_device_count={devices}'
    # Programs of tests are never among those of the user.
    variables = os.environ | {
        'XLA_FLAGS': flags,
        'JAX_PLATFORMS': 'cpu',
        'LONGMEM_JAX_CACHE': 'off',
        # Further threads of small products wait in loops that take the time of other workers.
        'OMP_NUM_THREADS': '1',
        'OPENBLAS_NUM_THREADS': '1',
    }
    if cache is not None:
        variables |= {
            'JAX_COMPILATION_CACHE_DIR': str(cache),
            'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
            'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
        }
    return variables
