"""Peak rates of accelerators, for utilisation, and memory sizes, to check that a step fits."""

import jax

from longmem_jax.devices.gpus import GPUS

# By `device_kind`: dense bfloat16 operations per second and bytes of memory per device as JAX counts
# devices, from the vendor's data sheets.
DEVICES = {
    'TPU v6 lite': (918e12, 32e9),
    'TPU v6e': (918e12, 32e9),
    'TPU v5 lite': (197e12, 16e9),
    'TPU v5e': (197e12, 16e9),
    'TPU v5': (459e12, 95e9),
    'TPU v5p': (459e12, 95e9),
    'TPU v4': (275e12, 32e9),
    'TPU v3': (61.5e12, 16e9),
    **{gpu.kind: (gpu.flops, gpu.memory) for gpu in GPUS.values()},
}
UNKNOWN = (0.0, 0.0)


def peak_flops(device: jax.Device) -> float:
    """Peak bfloat16 operations per second of a device; 0 if unknown."""
    return DEVICES.get(device.device_kind, UNKNOWN)[0]


def memory_bytes(device: jax.Device) -> float:
    """Bytes of high-bandwidth memory of a device; 0 if unknown."""
    return DEVICES.get(device.device_kind, UNKNOWN)[1]


def platform() -> str:
    """What is traced is for: 'cpu', 'gpu' or 'tpu', by the mesh around it or else by JAX's backend."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return str(device.platform if device else jax.default_backend())
