"""Calls of `emugpu.pytorch`: the memory of PyTorch's tensors, and what PyTorch computes on the CPU.

A tensor lies at one address for program and kernels, like pinned memory. Unlike that, it has a shadow: PyTorch says
which bytes it has written. The memory of tensors, pinned memory too, is freed without a wait, as PyTorch's own
allocators do it.
"""

from __future__ import annotations

import numpy as np

from emugpu.driver.api import handles
from emugpu.driver.memory_calls import mark
from emugpu.driver.results import DriverError, name_of
from emugpu.driver.state import Session


@handles("emulatedTensorAllocate")
def allocate(session: Session, nbytes: int) -> int:
    if session.error:
        raise DriverError(name_of(session.error).removeprefix("CUDA_ERROR_"))
    return session.allocate(session.tensors, nbytes, f"tensor of {nbytes} bytes")


@handles("emulatedTensorFree")
def free(session: Session, address: int) -> None:
    block = session.memory.starting_at(address)
    if block is None:
        raise DriverError("INVALID_VALUE", f"{address:#x} is not a tensor's memory")
    session.order.freed(address)
    if not session.pinned.holds(address):
        session.used -= block.data.size
    session.memory.drop(block)


@handles("emulatedTensorWritten")
def written(session: Session, ranges: bytes, count: int) -> None:
    for address, nbytes in np.frombuffer(ranges, np.uint64).reshape(count, 2).tolist():
        found = session.find(address, nbytes)
        if found is None:
            raise DriverError("INVALID_VALUE", f"{address:#x} is not a tensor's memory")
        mark(*found, nbytes)


@handles("emulatedTensorComputed")
def computed(session: Session, name: str) -> None:
    session.gpu.log.by_torch.add(name)


@handles("emulatedTensorRefused")
def refused(session: Session, name: str) -> None:
    """Refuses an operator that PyTorch has for CUDA alone, or a part of torch.cuda."""
    session.gpu.log.refused(name)
