"""The command: `python -m longmem_jax.main --config=configs/quickstart.py --workdir=DIR --mode=train`.

What a process needs is set here, before libraries are imported that start threads; all else is in
`commands.switchboard`.
"""

import gc
import importlib.metadata
import sys

from longmem_jax import stopping
from longmem_jax.devices import allocator


def main() -> None:
    """Entry point of `python -m longmem_jax.main`."""
    gc.disable()  # until a mode runs: imports leave no garbage, and looking for it takes a sixth of them
    allocator.keep_pages()
    stopping.listen(command=True, importing=True)
    from longmem_jax.errors import UsageError, require_extra

    if sys.argv[1:] == ['--version']:  # needs no extra
        print(f'longmem_jax {importlib.metadata.version("longmem_jax")}')
        sys.exit(0)
    try:
        with require_extra('train'):
            from longmem_jax.commands import switchboard
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    switchboard.main()


if __name__ == '__main__':
    main()
