"""What tests of kernels share: small blocks, run by Pallas's interpreter, and random vectors."""

import jax

from longmem_jax.kernels.tpu import fused_devices


def interpret(monkeypatch, module, **sizes):
    """The interpreter runs the kernels of `module`, with blocks of these sizes."""
    monkeypatch.setattr(fused_devices, 'INTERPRETED', True)
    for name, size in sizes.items():
        monkeypatch.setattr(module, name, size)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)
