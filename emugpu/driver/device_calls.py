"""Calls that query the device."""

from __future__ import annotations

import struct
from pathlib import Path

from emugpu.driver.api import handles
from emugpu.driver.results import DriverError
from emugpu.driver.state import Session

_LIMITS = {0: "stack_bytes", 1: "printf_bytes", 2: "heap_bytes"}
_OTHER_LIMITS = {3: 2, 4: 2048, 5: 128, 6: 0}
"""Depth and count of launches by kernels, granularity of the L2 cache, and the part of it that can be persistent."""


def _check(device: int) -> None:
    if device:
        raise DriverError("INVALID_DEVICE", f"device {device}: there is one, number 0")


@handles("cuDeviceGet")
def get(session: Session, ordinal: int) -> int:
    _check(ordinal)
    return 0


@handles("cuDeviceGetName")
def name(session: Session, length: int, device: int) -> bytes:
    _check(device)
    return session.gpu.model.name.encode()[: max(length - 1, 0)] + b"\0"


@handles("cuDeviceGetUuid", "cuDeviceGetUuid_v2")
def uuid(session: Session, device: int) -> bytes:
    _check(device)
    return b"emulated" + session.gpu.model.key.encode().rjust(8, b"-")


@handles("cuDeviceGetLuid")
def luid(session: Session, device: int) -> tuple[bytes, int]:
    raise DriverError("NOT_SUPPORTED")


@handles("cuDeviceTotalMem_v2")
def total_memory(session: Session, device: int) -> int:
    _check(device)
    return session.gpu.model.memory_bytes


@handles("cuDeviceGetAttribute")
def attribute(session: Session, number: int, device: int) -> int:
    _check(device)
    value = session.gpu.model.attributes.get(number)
    if value is None:
        raise DriverError("INVALID_VALUE", f"attribute {number} is not known")
    return value


def _bus_id(session: Session) -> str:
    model = session.gpu.model
    return f"{model['pci_domain_id']:04x}:{model['pci_bus_id']:02x}:{model['pci_device_id']:02x}.0"


@handles("cuDeviceGetPCIBusId")
def bus_id(session: Session, length: int, device: int) -> bytes:
    _check(device)
    return _bus_id(session).encode()[: max(length - 1, 0)] + b"\0"


@handles("cuDeviceGetByPCIBusId")
def by_bus_id(session: Session, text: str) -> int:
    if text.lower() != _bus_id(session):
        raise DriverError("INVALID_DEVICE", f"there is no device {text}")
    return 0


@handles("cuDeviceComputeCapability")
def capability(session: Session, device: int) -> tuple[int, int]:
    _check(device)
    return session.gpu.model.capability


_PROPERTIES = (
    *("max_threads_per_block", "max_block_dim_x", "max_block_dim_y", "max_block_dim_z"),
    *("max_grid_dim_x", "max_grid_dim_y", "max_grid_dim_z", "max_shared_memory_per_block"),
    *("total_constant_memory", "warp_size", "max_pitch", "max_registers_per_block", "clock_rate", "texture_alignment"),
)


@handles("cuDeviceGetProperties")
def properties(session: Session, device: int) -> bytes:
    _check(device)
    return struct.pack("=14i", *(session.gpu.model[name] for name in _PROPERTIES))


@handles("cuCtxGetLimit")
def get_limit(session: Session, limit: int) -> int:
    if limit in session.limits:
        return session.limits[limit]
    if limit in _LIMITS:
        return int(getattr(session.gpu.model, _LIMITS[limit]))
    if limit in _OTHER_LIMITS:
        return _OTHER_LIMITS[limit]
    raise DriverError("UNSUPPORTED_LIMIT")


@handles("cuCtxSetLimit")
def set_limit(session: Session, limit: int, value: int) -> None:
    if limit not in _LIMITS and limit not in _OTHER_LIMITS:
        raise DriverError("UNSUPPORTED_LIMIT")
    session.limits[limit] = value


@handles("emulatedReset")
def reset(session: Session) -> None:
    session.reset()


@handles("emulatedRuntimeCheck")
def runtime_check(session: Session) -> None:
    """Handles a check by NVIDIA's runtime, if it is linked into the program: this is not NVIDIA's driver."""
    session.gpu.log.failed(
        "the program has NVIDIA's CUDA runtime linked into it, which works only with NVIDIA's own driver; build it "
        "with nvcc -cudart shared, so that it gets the emulated runtime"
    )


@handles("emulatedNoExportTable")
def no_export_table(session: Session, table: str, library: str) -> None:
    """Notes a private table of NVIDIA's driver that does not exist here. Most libraries do without it."""
    session.gpu.log.lacks(
        f"cuGetExportTable has no table {table} for {Path(library).name}; if NVIDIA's CUDA runtime is linked into it, "
        "that accepts only NVIDIA's driver, and a build with the shared runtime is needed"
    )


@handles("emulatedRefusal")
def refusal(session: Session, name: str) -> None:
    """Refuses a function of the runtime that is not supported."""
    session.gpu.log.refused(name)
