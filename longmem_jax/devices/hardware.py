"""What accelerators can do: peak rates for utilisation, memory sizes for the fit of a compiled step."""

import jax

# Dense bfloat16 operations per second and bytes of memory per device as JAX counts devices, from the
# makers' data sheets; the key is a part of `device_kind`, the first that matches is taken.
DEVICES = (
    ('TPU v6', 918e12, 32e9),
    ('TPU v5 lite', 197e12, 16e9),
    ('TPU v5e', 197e12, 16e9),
    ('TPU v5', 459e12, 95e9),
    ('TPU v4', 275e12, 32e9),
    ('TPU v3', 61.5e12, 16e9),
    ('H200', 989e12, 141e9),
    ('H100', 989e12, 80e9),
    ('A100', 312e12, 80e9),
)


def _find(device: jax.Device):
    for name, flops, memory in DEVICES:
        if name.lower() in device.device_kind.lower():
            return flops, memory
    return 0.0, 0.0


def peak_flops(device: jax.Device) -> float:
    """Peak bfloat16 operations per second of a device; 0 where it is not known (CPUs)."""
    return _find(device)[0]


def memory_bytes(device: jax.Device) -> float:
    """Bytes of high-bandwidth memory of a device; 0 where it is not known."""
    return _find(device)[1]
