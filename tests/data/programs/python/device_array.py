"""Arrays in device memory by the driver API, for programs without torch."""

import ctypes

import numpy as np

cu = ctypes.CDLL("libcuda.so.1")


def check(code):
    if code:
        raise SystemExit(f"the driver says {code}")


def start():
    """Initialise the driver, and make the first GPU's primary context current."""
    context = ctypes.c_void_p()
    check(cu.cuInit(0))
    check(cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cu.cuCtxSetCurrent(context))


class DeviceArray:
    """A NumPy array's copy on the device. dtype: by the name that Triton knows."""

    def __init__(self, content, dtype):
        self.content, self.dtype, self.shape = np.ascontiguousarray(content), dtype, content.shape
        self.address = ctypes.c_uint64()
        check(cu.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(self.content.nbytes)))
        data = ctypes.c_void_p(self.content.ctypes.data)
        check(cu.cuMemcpyHtoD_v2(self.address, data, ctypes.c_size_t(self.content.nbytes)))

    def data_ptr(self):
        return self.address.value

    def stride(self, dimension):
        return self.content.strides[dimension] // self.content.itemsize

    def numpy(self):
        result = np.empty_like(self.content)
        check(cu.cuMemcpyDtoH_v2(ctypes.c_void_p(result.ctypes.data), self.address, ctypes.c_size_t(result.nbytes)))
        return result
