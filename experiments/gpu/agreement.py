"""Whether numbers are right on this device: goldens of the authors' code, promises of the contract."""

from pathlib import Path
from typing import Any

import jax

from experiments.gpu import job
from experiments.gpu.job import Place
from longmem_jax.testing import conformance

GOLDENS = Path(__file__).parents[2] / 'tests/goldens'


def systems(tiny: bool) -> list[str]:
    """The folders of goldens."""
    names = sorted({path.parent.name for path in GOLDENS.glob('*/*.npz')})
    return names[: 1 if tiny else None]


def goldens(place: Place, cell: str, folder: Path, precision: str = 'highest') -> dict[str, Any]:
    """Goldens of a system in float32: tensors that leave their tolerance, and by how many times it.

    `precision` is that of products; with 'default' a GPU takes TF32.
    """
    from tests.parity import compare  # needs the tests' checks of all systems

    found = job.kept(folder / 'files.json')
    for path in sorted((GOLDENS / cell).glob('*.npz'))[: 1 if place.tiny else None]:
        if path.stem not in found:
            with jax.default_matmul_precision(precision):
                found[path.stem] = _compared(compare, path)
            jax.clear_caches()
            job.keep(folder / 'files.json', found)
            print(path.stem, found[path.stem], flush=True)
    broken = {name: of for name, of in found.items() if of['outside'] or 'said' in of}
    worst = max((of['worst'] for of in found.values()), default=0.0)
    good = len(found) - len(broken)
    return {'files': len(found), 'good': good, 'worst': worst, 'outside': broken}


def _compared(compare: Any, path: Path) -> dict[str, Any]:
    """Tensors of one file: how many, the largest error in tolerances, and those beyond 1."""
    outside, worst, number, said = {}, 0.0, 0, {}
    try:
        for name, error, tolerance in compare(path):
            times = error / tolerance if tolerance else float(error > 0)
            number, worst = number + 1, max(worst, times)
            if not times <= 1:
                outside[name] = times
    except ImportError as error:
        said = {'said': f'no {error.name} here'}
    except Exception as error:  # other files can still be compared
        said = {'said': f'{type(error).__name__}: {error}'[:300]}
    return {'tensors': number, 'worst': worst, 'outside': outside} | said


def promises(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """The promises of the conformance suite for a memory with its first settings, and those broken."""
    given = [promise for _, promise in conformance.cases(cell)]
    known = job.kept(folder / 'promises.json')
    for promise in given[: 2 if place.tiny else None]:
        if promise not in known:
            with jax.default_matmul_precision('highest'):
                known[promise] = _said(cell, promise)
            job.keep(folder / 'promises.json', known)
            print(promise, known[promise] or 'kept', flush=True)
    broken = {promise: said for promise, said in known.items() if said}
    return {'promises': len(known), 'good': len(known) - len(broken), 'broken': broken}


def _said(name: str, promise: str) -> str:
    """What is broken; '' = nothing."""
    try:
        conformance.check(name, promise)
    except Exception as error:  # such as no room: other promises can still be checked
        return f'{type(error).__name__}: {error}'[:600]
    return ''
