"""The CUDA driver API through ctypes, for probes that need nothing but Python and a GPU's driver."""

from __future__ import annotations

import ctypes
from typing import Any


class DriverError(Exception):
    """A call that failed: its name and the driver's error code."""


class DriverApi:
    """The driver library with the first GPU's primary context current."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"cannot load the CUDA driver ({error}); this probe needs a GPU") from None
        self.device = ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def result(self, name: str, *arguments: Any) -> int:
        """The error code of a call; -1 if this driver has no function of that name."""
        function = getattr(self.library, name, None)
        return -1 if function is None else int(function(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """A call that has to succeed. Raises DriverError."""
        code = self.result(name, *arguments)
        if code:
            raise DriverError(f"{name} failed: error {code}")

    def attribute(self, number: int) -> int | None:
        """A device attribute (CUdevice_attribute); None if this driver does not know the number."""
        value = ctypes.c_int()
        code = self.result("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return None if code else value.value

    def driver_version(self) -> int:
        """CUDA version of the driver: 13000 for 13.0."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def device_name(self) -> str:
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), self.device)
        return name.value.decode()
