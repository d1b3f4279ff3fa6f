"""What tests of kernels share: small blocks, run by Pallas's interpreter, and random vectors."""

import jax

from longmem_jax.kernels import fused_devices


def interpret(monkeypatch, module, platform='tpu', **sizes):
    """The interpreter runs the kernels of a platform; blocks of `module` have these sizes."""
    monkeypatch.setattr(fused_devices, 'INTERPRETED', platform)
    for name, size in sizes.items():
        monkeypatch.setattr(module, name, size)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)
