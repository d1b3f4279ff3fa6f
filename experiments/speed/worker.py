"""One side of a comparison in a process of its own: a step for every line that it reads.

`compare.py` starts it, and `history.py` for two versions of the library: so it imports nothing that an
earlier version may not have. The first answer says what runs, each later one the time of a step; all
are lines of JSON on standard output, everything else goes to the standard error.
"""

import argparse
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.speed.cases import CASES, FULL, TOY, Case, Sizes

OURS = 'ours'


def make_step(
    options: argparse.Namespace, case: Case, sizes: Sizes
) -> tuple[Callable[[], float], dict[str, str]]:
    """The step of one side, its `software` in words, and the `root` of our library."""
    if options.side == OURS:
        import jax

        import longmem_jax
        from experiments.speed import ours

        root = Path(longmem_jax.__file__).resolve().parents[1]
        folder = (options.checkout,) if options.checkout else ()  # earlier versions have none
        step = ours.build(case, sizes, *folder)
        return step, dict(software=f'jax {jax.__version__}', root=str(root))
    sys.path.insert(0, options.checkout)
    peer = importlib.import_module(options.side)
    torch = sys.modules.get('torch')
    if torch is None:
        return peer.build(case.peer, sizes), dict(software='', root='')
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if torch.cuda.is_available():  # where our side is, too
        torch.set_default_device('cuda')
    settings = case.peer | (dict(folder=options.checkout) if case.prompt else {})
    return peer.build(settings, sizes), dict(software=f'torch {torch.__version__}', root='')


def timed(step: Callable[[], float]) -> dict[str, float]:
    """Milliseconds by the wall and of all threads, the loss, and most MiB of the process so far."""
    cpu, wall = time.process_time(), time.perf_counter()
    loss = step()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {'wall': 1e3 * wall, 'cpu': 1e3 * cpu, 'loss': loss, 'most': most}


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--side', required=True, help=f"'{OURS}', or the module of a peer")
    parser.add_argument('--peer', default='')
    parser.add_argument('--case', default='', help='one of the peer')
    parser.add_argument('--fields', type=json.loads, help='JSON of a case, instead of these two')
    parser.add_argument('--checkout', default='')
    parser.add_argument('--toy', action='store_true')
    parser.add_argument('--fill', type=int, required=True)
    parser.add_argument('--cores', type=int, default=0, help='0 = all')
    options = parser.parse_args()
    if options.cores:  # before a library counts them
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
    # What a peer prints must not look like an answer.
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=answers, flush=True)

    case = Case(**options.fields) if options.fields else CASES[options.peer][options.case]
    step, about = make_step(options, case, TOY if options.toy else case.sizes or FULL)
    for _ in range(options.fill):
        step()
    answer(about)
    for _ in sys.stdin:
        answer(timed(step))


if __name__ == '__main__':
    main()
