"""Makes the data folder of the suite, which goes to a machine without a network.

python -m experiments.gpu.pack --novels=BOOKS --output=DATA

BOOKS has train/, validation/ and test/ with a text per novel. Code is that of the Python packages that
are installed here. Texts are packed by xz. The commit goes along, for a copy without git.
"""

import argparse
import lzma
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments import provenance
from experiments.gpu.process import COMMIT
from experiments.options import make_parser
from longmem_jax import files
from longmem_jax.data.stdlib import SKIPPED

CODE = 24_000_000  # bytes of code, before they are packed
DOCUMENT = 512 * 512  # bytes that a document has at least, so that all positions have as many texts
SPLITS = ('train', 'validation', 'test')


def packages() -> Iterator[tuple[str, bytes]]:
    """Name and source of every large package, in order; a document each."""
    roots = {Path(sysconfig.get_path(name)) for name in ('stdlib', 'purelib')}
    folders = sorted(each for root in roots for each in root.iterdir() if each.is_dir())
    for folder in folders:
        if folder.name in SKIPPED:
            continue
        paths = (
            p
            for p in sorted(folder.rglob('*.py'))
            if not SKIPPED & set(p.parts[len(folder.parts) :])
        )
        source = b'\n'.join(path.read_bytes() for path in paths)
        if len(source) >= DOCUMENT:
            yield folder.name, source[: 8 * DOCUMENT]


def pack(options: argparse.Namespace) -> None:
    """Writes the folder."""
    for split in SPLITS:
        for path in sorted((options.novels / split).glob('*.txt')):
            _write(options.output / 'novels' / split / f'{path.name}.xz', path.read_bytes())
    total = 0
    for number, (name, source) in enumerate(packages()):
        total += len(source)
        if total > CODE:
            break
        split = {8: 'validation', 9: 'test'}.get(number % 10, 'train')
        _write(options.output / 'code' / split / f'{name}.txt.xz', source)
    if provenance.COMMIT:
        files.write(options.output / COMMIT, provenance.COMMIT)
    size = sum(path.stat().st_size for path in options.output.rglob('*') if path.is_file())
    print(f'{options.output}: {size / 1e6:.1f} MB')


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, lzma.compress(content))


def main(given: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = make_parser(__doc__, 'experiments.gpu.pack')
    parser.add_argument('--novels', type=Path, required=True)
    parser.add_argument('--output', type=Path, required=True)
    options = parser.parse_args(given)
    if options.output.exists():
        parser.error(f'--output={options.output}: is there already; name a new folder')
    pack(options)


if __name__ == '__main__':
    main()
