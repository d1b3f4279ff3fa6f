"""`python -m longmem_jax`: the same command as `python -m longmem_jax.main`."""

from longmem_jax.main import main

if __name__ == '__main__':
    main()
