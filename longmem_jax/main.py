"""The command: `python -m longmem_jax.main --config=configs/quickstart.py --workdir=DIR --mode=train`.

What a process needs is set here, before libraries are imported that start threads; all else is in
`commands.switchboard`.
"""

import gc

from longmem_jax import stopping
from longmem_jax.devices import allocator


def main() -> None:
    """Entry point of `python -m longmem_jax.main`."""
    gc.disable()  # until a mode runs: imports leave no garbage, and looking for it takes a sixth of them
    allocator.keep_pages()
    stopping.listen(command=True, importing=True)
    from longmem_jax.commands import switchboard

    switchboard.main()


if __name__ == '__main__':
    main()
