"""Every test runs on 8 virtual CPU devices, and compiled programs are shared between runs."""

import gc
import itertools
import os
import re
import sys
import tempfile
import threading
import zlib

from tests.packages import hide_theirs
from tests.processes import environment

hide_theirs()
# Read when jax is first imported, so they come before it.
os.environ.update(environment(devices=8))
os.environ.setdefault('MPLBACKEND', 'agg')

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402
from jax._src.interpreters import mlir  # noqa: E402

from longmem_jax.reporting import figures  # noqa: E402
from tests.forks import start  # noqa: E402, F401  (a fixture)

# One cache per environment: entries are not written in one piece, and two runs must not share them.
PLACE = zlib.crc32(sys.prefix.encode())
CACHE = os.path.join(tempfile.gettempdir(), f'longmem_jax-test-cache-{os.getuid()}-{PLACE:08x}')
os.makedirs(CACHE, exist_ok=True)
jax.config.update('jax_compilation_cache_dir', CACHE)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
# Operations of a program need not know the lines that made them, and the garbage collector runs rarely:
# both are a good part of the time of tracing.
jax.config.update('jax_traceback_in_locations_limit', 0)
gc.set_threshold(100_000, 20, 100)
KEPT = 12_000  # pieces of memory that a process maps: about two gigabytes of programs

CONTEXTS = 200  # programs lowered in one context, which keeps the constants of all


def _share_contexts():
    """Lowers many programs in one context: making it is a third of the time of a small program.

    A version of JAX without this function makes one for each.
    """
    make, numbers, kept = getattr(mlir, 'make_ir_context', None), itertools.count(), {}

    def shared():
        thread = threading.get_ident()
        if next(numbers) % CONTEXTS == 0:
            kept.clear()
        return kept.get(thread) or kept.setdefault(thread, make())

    if make:
        mlir.make_ir_context = shared


_share_contexts()

# No deadlines: a slow machine is not an error. The same examples in every run.
hypothesis.settings.register_profile('fixed', deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile('fixed')


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """After a crash no worker takes its place: it would run the same test again, and wait forever."""
    if getattr(config.option, 'maxworkerrestart', 0) is None:
        config.option.maxworkerrestart = '0'


def work_unit(nodeid):
    """The tests that one worker runs in sequence, because they share programs or fixtures."""
    file, _, test = nodeid.partition('::')
    if file.endswith(('conformance_test.py', 'views_test.py')):
        layer = re.search(r'\[([\w:]+)', test)
        return f'{file}[{layer and layer[1]}]'
    if file.endswith(('golden_test.py', 'config_test.py')):
        return nodeid
    return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Distributes the units over workers, those with many tests first."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return work_unit(nodeid)

    return ByUnit(config, log)


def pytest_collection_finish():
    """What has been imported stays, and is not looked through for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def made_figures(monkeypatch):
    """The figures that a test makes, in order."""
    made, make = [], figures.figure
    monkeypatch.setattr(figures, 'figure', lambda *size: made.append(make(*size)) or made[-1])
    return made


def _count(event, duration, **_):
    if event.endswith('backend_compile_duration'):
        _programs.append(event)


def _mapped():
    try:
        with open('/proc/self/maps') as file:
            return sum(1 for _ in file)
    except OSError:  # not Linux
        return 30 * len(_programs)


_programs = []
jax.monitoring.register_event_duration_secs_listener(_count)


@pytest.fixture(autouse=True, scope='module')
def _release():
    """Frees programs between files: a process can map only a limited number, and then crashes.

    Small ones are those of single operations, which the next files need again.
    """
    yield
    if _mapped() > KEPT:
        _programs.clear()
        jax.clear_caches()
        gc.collect()
