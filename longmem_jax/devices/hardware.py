"""Peak rates of accelerators, for utilisation, and memory sizes, to check that a step fits."""

import jax

# Dense bfloat16 operations per second and bytes of memory per device as JAX counts devices, from the
# vendors' data sheets. The first name that occurs in `device_kind` applies.
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


def _find(device: jax.Device) -> tuple[float, float]:
    for name, flops, memory in DEVICES:
        if name.lower() in device.device_kind.lower():
            return flops, memory
    return 0.0, 0.0


def peak_flops(device: jax.Device) -> float:
    """Peak bfloat16 operations per second of a device; 0 if unknown (CPUs)."""
    return _find(device)[0]


def memory_bytes(device: jax.Device) -> float:
    """Bytes of high-bandwidth memory of a device; 0 if unknown."""
    return _find(device)[1]
