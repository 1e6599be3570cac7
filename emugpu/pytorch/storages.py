"""Storages of the device, which PyTorch's build for CPUs can neither make nor resize.

`torch.load`, `copy.deepcopy` and unpickling make them.
"""

from __future__ import annotations

import ctypes
from typing import Any


def install(torch: Any, library: ctypes.CDLL) -> None:
    """Lets ``torch.UntypedStorage`` make storages of the device, and resize them."""
    library.emulated_allocator.restype = ctypes.c_void_p
    allocator = library.emulated_allocator()
    storage = torch.UntypedStorage
    make, resize = storage.__new__, storage.resize_

    def make_on_device(cls: Any, *given: Any, device: Any = None, **others: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return make(cls, *given, **others, **({} if device is None else {"device": device}))
        torch.cuda._exchange_device(torch.device(device))  # there is one
        return make(cls, *given, **others, allocator=allocator)

    def resize_on_device(self: Any, nbytes: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, nbytes)
        torch.ops.emulated.resize_storage(torch.empty(0, dtype=torch.uint8, device="cuda").set_(self), nbytes)
        return self

    storage.__new__, storage.resize_ = make_on_device, resize_on_device
