"""Every test runs on 8 virtual CPU devices, and compiled programs are shared between runs."""

import importlib.metadata
import os
import sys
import tempfile
import zlib

# Read when jax is first imported, so they come before it.
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = ' '.join(
    [
        os.environ.get('XLA_FLAGS', ''),
        '--xla_force_host_platform_device_count=8',
        # Tiny programs, run once: compiling them is nearly all of the time.
        '--xla_backend_optimization_level=0',
        '--xla_llvm_disable_expensive_passes=true',
        # Half of the compiling; XLA refuses to start with a flag that it does not know.
        *(
            ['--xla_cpu_use_fusion_emitters=false', '--xla_cpu_parallel_codegen_split_count=1']
            if importlib.metadata.version('jaxlib').startswith('0.10.')
            else []
        ),
    ]
).strip()
os.environ.setdefault('MPLBACKEND', 'agg')

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

# One cache per environment: entries are not written in one piece, and two runs must not share them.
PLACE = zlib.crc32(sys.prefix.encode())
CACHE = os.path.join(tempfile.gettempdir(), f'longmem_jax-test-cache-{os.getuid()}-{PLACE:08x}')
os.makedirs(CACHE, exist_ok=True)
jax.config.update('jax_compilation_cache_dir', CACHE)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)

# A slow machine is no fault of the code: no deadlines. The same examples in every run.
hypothesis.settings.register_profile('fixed', deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile('fixed')


@pytest.fixture(autouse=True, scope='module')
def _release():
    """Lets go of the programs of a file: a process can map only so many, and crashes beyond."""
    yield
    jax.clear_caches()
