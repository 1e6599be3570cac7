"""The part of the CUDA driver API that launching and timing a kernel needs, through ctypes, so nothing is installed.

It uses the process's primary context, as PyTorch does, so PyTorch's tensors and streams can be passed as numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from emugpu.errors import CannotRun

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
CLUSTER_DIMENSION = 4  # CUlaunchAttributeID
PROGRAMMATIC_STREAM_SERIALIZATION = 6
COMPUTE_CAPABILITY = (75, 76)  # CUdevice_attribute
MULTIPROCESSORS = 16
ERROR_LOG_BUFFER = 5  # CUjit_option
ERROR_LOG_BUFFER_SIZE_BYTES = 6
ERROR_LOG_BYTES = 4096
TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGNMENT = 64
TENSOR_MAP_TYPES = {
    "u8": 0, "e4m3": 0, "e5m2": 0, "ue8m0": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "fp16": 6,
    "f32": 7, "f64": 8, "bf16": 9, "tf32": 11, "b4x16": 13, "b4x16_p64": 14, "b6x16_p32": 15,
}  # fmt: skip
"""CUtensorMapDataType, by the names of `emugpu.emulator.memory.tensor_map.ELEMENT_TYPES`."""
SWIZZLES = {
    "none": 0, "32B": 1, "64B": 2, "128B": 3, "128B_ATOM_32B": 4, "128B_ATOM_32B_FLIP_8B": 5, "128B_ATOM_64B": 6,
}  # fmt: skip
"""CUtensorMapSwizzle. The emulator has the first five."""
L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}  # CUtensorMapL2promotion, by bytes
DEFAULT_STREAM = 0


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    ]


class AlignedBytes:
    """A parameter passed by value, at a host address that is aligned for a tensor map."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._memory = ctypes.create_string_buffer(self.size + TENSOR_MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // TENSOR_MAP_ALIGNMENT) * TENSOR_MAP_ALIGNMENT
        ctypes.memmove(self.address, data, self.size)

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.size)


Parameter = AlignedBytes | ctypes.c_uint32 | ctypes.c_uint64 | ctypes.c_float


class Driver:
    """One GPU, the first or another by its ``ordinal``. Raises CannotRun, naming the call and the error, if the driver
    refuses a call.
    """

    def __init__(self, library: Any = None, ordinal: int = 0) -> None:
        try:
            self.library = library or ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CannotRun(f"no CUDA driver on this machine ({error})") from None
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.device, self.context = device, context

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise CannotRun(f"{name} failed: {(text.value or b'error').decode()} ({code})")

    def result(self, name: str, *arguments: Any) -> int:
        """Returns the error code of a call, or -1 if this driver has no function of that name."""
        function = getattr(self.library, name, None)
        return -1 if function is None else int(function(*arguments))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes this GPU's context the current one of the thread, for the block."""
        self.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def attribute(self, number: int) -> int:
        """Returns a CUdevice_attribute."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def describe(self) -> dict[str, Any]:
        """Returns the name, compute capability, number of multiprocessors and version of the driver API."""
        name, version = ctypes.create_string_buffer(256), ctypes.c_int()
        self.call("cuDeviceGetName", name, len(name), self.device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        major, minor = (self.attribute(number) for number in COMPUTE_CAPABILITY)
        return {
            "name": name.value.decode(),
            "compute_capability": f"{major}.{minor}",
            "multiprocessors": self.attribute(MULTIPROCESSORS),
            "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        }

    # ---- memory ----
    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def fill(self, address: int, size: int, byte: int = 0) -> None:
        self.call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(byte), ctypes.c_size_t(size))

    def upload(self, address: int, content: np.ndarray) -> None:
        data = np.ascontiguousarray(content)
        self.call(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes)
        )

    def download(self, address: int, data: np.ndarray) -> np.ndarray:
        """Copies device memory into ``data``, which must be contiguous, and returns it."""
        self.call(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(data.ctypes.data),
            ctypes.c_uint64(address),
            ctypes.c_size_t(data.nbytes),
        )
        return data

    # ---- kernels ----
    def load_module(self, image: bytes) -> ctypes.c_void_p:
        """Loads a module from machine code or PTX, which the driver compiles. Raises CannotRun with its messages."""
        log = ctypes.create_string_buffer(ERROR_LOG_BYTES)
        options = (ctypes.c_int * 2)(ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        module = ctypes.c_void_p()
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), image + b"\0", 2, options, values)
        except CannotRun as error:
            lines = [line.strip() for line in log.value.decode(errors="replace").splitlines() if line.strip()]
            raise CannotRun(f"{error} {'; '.join(lines[:3])}".strip()) from None
        return module

    def function(self, module: ctypes.c_void_p, entry: str) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(found), module, entry.encode())
        return found

    def load(self, image: bytes, entry: str) -> ctypes.c_void_p:
        """Loads a module and returns one of its kernels."""
        return self.function(self.load_module(image), entry)

    def variable(self, module: ctypes.c_void_p, name: str) -> tuple[int, int]:
        """Returns the address and the size in bytes of a variable of a module."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, name.encode())
        return address.value, size.value

    def allow_shared(self, function: ctypes.c_void_p, size: int) -> None:
        """Allows dynamic shared memory above 48 KB, and clusters of 16, which both need permission."""
        self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE_BYTES, size)
        self.call("cuFuncSetAttribute", function, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)

    def tensor_map(
        self,
        address: int,
        element: str,
        dims: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: str = "none",
        l2_promotion: int = 0,
        fill_nan: bool = False,
        element_strides: Sequence[int] = (),
    ) -> AlignedBytes:
        """Encodes a tensor map. dims, box: in elements, innermost first. strides: bytes, of dims 1 and up.

        l2_promotion: in bytes.
        """
        encoded, rank = AlignedBytes(bytes(TENSOR_MAP_BYTES)), len(dims)
        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(encoded.address),
            TENSOR_MAP_TYPES[element],
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*dims),
            (ctypes.c_uint64 * max(1, rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*(element_strides or [1] * rank)),
            0,
            SWIZZLES[swizzle],
            L2_PROMOTIONS[l2_promotion],
            int(fill_nan),
        )
        return encoded

    def launcher(
        self,
        function: ctypes.c_void_p,
        parameters: Sequence[Parameter],
        grid: Sequence[int],
        block: Sequence[int],
        shared: int = 0,
        cluster: Sequence[int] | None = None,
        overlap: bool = False,
    ) -> Callable[..., None]:
        """Returns a function that launches the kernel on a stream.

        cluster: the cluster size, unless the kernel fixes it. overlap: the launch may begin while the previous one ends
        (programmatic stream serialisation).
        """
        kept = tuple(parameters)
        addresses = [p.address if isinstance(p, AlignedBytes) else ctypes.addressof(p) for p in kept]
        pointers = (ctypes.c_void_p * max(1, len(kept)))(*addresses)
        attributes = (Attribute * 2)()
        count = 0
        if cluster is not None:
            attributes[count].id = CLUSTER_DIMENSION
            attributes[count].value[0:3] = tuple(cluster)
            count += 1
        if overlap:
            attributes[count].id = PROGRAMMATIC_STREAM_SERIALIZATION
            attributes[count].value[0] = 1
            count += 1

        def launch(stream: int = DEFAULT_STREAM, kept: Any = kept) -> None:
            sizes = ((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block))
            config = LaunchConfig(*sizes, shared, ctypes.c_void_p(stream), attributes, count)
            self.call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)

        return launch

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    # ---- times ----
    def new_stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)  # it does not wait for the default stream
        return stream.value or 0

    def graph(self, launches: Sequence[Callable[[int], None]]) -> Callable[[], float]:
        """Returns a function that runs these launches one after another as one graph and returns its seconds."""
        stream = self.new_stream()
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 1)  # of this thread's calls only
        for launch in launches:
            launch(stream)
        self.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in events:
            self.call("cuEventCreate", ctypes.byref(event), 0)

        def seconds() -> float:
            self.call("cuEventRecord", events[0], ctypes.c_void_p(stream))
            self.call("cuGraphLaunch", executable, ctypes.c_void_p(stream))
            self.call("cuEventRecord", events[1], ctypes.c_void_p(stream))
            self.call("cuEventSynchronize", events[1])
            milliseconds = ctypes.c_float()
            self.call("cuEventElapsedTime", ctypes.byref(milliseconds), events[0], events[1])
            return milliseconds.value / 1000

        return seconds
