"""PyTorch's build for CPUs as if it had the emulated GPU: tensors of "cuda" are CPU tensors in managed memory.

PyTorch's own operators run on the CPU and are not looked at; the kernels of other libraries run on the emulated GPU.
`install` must be called before the first tensor is made, in a process that has `managed.c` preloaded.
"""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace
from typing import Any

import dlpack_device
import torch

_MAKERS = (
    *("arange", "as_tensor", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "full", "full_like"),
    *("linspace", "logspace", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn"),
    *("randn_like", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like"),
)
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
_MANAGED = "managed_memory_begins"


def install(preloaded: str) -> None:
    """Makes PyTorch use the emulated GPU that this process has; ``preloaded`` is the path of the compiled managed.c."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(driver.cuInit, 0)
    _call(driver.cuDeviceGet, ctypes.byref(device), 0)
    _call(driver.cuDevicePrimaryCtxRetain, ctypes.byref(context), device)
    _call(driver.cuCtxSetCurrent, context)
    begin = getattr(ctypes.CDLL(preloaded), _MANAGED)
    begin(ctypes.cast(driver.cuMemAllocManaged, ctypes.c_void_p), ctypes.cast(driver.cuMemFree_v2, ctypes.c_void_p))
    _install_cuda(driver, device)
    _install_tensors()
    dlpack_device.install()


def _call(function: Any, *arguments: Any) -> None:
    if code := function(*arguments):
        raise RuntimeError(f"{function.__name__} returned error {code}")


class _Nothing:
    """A stream, an event or a context of the CUDA runtime: all work is done when a launch returns."""

    cuda_stream = 0
    cuda_event = 0
    device_index = 0
    device = torch.device("cuda", 0)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def nothing(self, *_: Any, **__: Any) -> None: ...

    record = wait = wait_stream = wait_event = record_event = nothing

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 1.0

    def synchronize(self) -> None:
        torch.cuda.synchronize()


def _install_cuda(driver: Any, device: ctypes.c_int) -> None:
    def attribute(number: int) -> int:
        value = ctypes.c_int()
        _call(driver.cuDeviceGetAttribute, ctypes.byref(value), number, device)
        return value.value

    capability = (attribute(75), attribute(76))
    properties = SimpleNamespace(
        name="emulated GPU", major=capability[0], minor=capability[1], multi_processor_count=attribute(16),
        total_memory=80 << 30, warp_size=32, max_threads_per_multi_processor=attribute(39), gcnArchName="",
        shared_memory_per_block=attribute(8), shared_memory_per_block_optin=attribute(97), L2_cache_size=attribute(38),
        shared_memory_per_multiprocessor=attribute(81), regs_per_multiprocessor=attribute(82),
    )  # fmt: skip
    stream = _Nothing()
    answers = {
        "is_available": True, "is_initialized": True, "is_bf16_supported": True, "device_count": 1, "current_device": 0,
        "get_device_capability": capability, "get_device_name": properties.name, "get_device_properties": properties,
        "current_stream": stream, "default_stream": stream, "is_current_stream_capturing": False, "get_arch_list": [],
        "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0, "mem_get_info": (40 << 30, 80 << 30),
        "empty_cache": None, "init": None, "_lazy_init": None, "set_device": None, "set_stream": None,
        "manual_seed": None, "manual_seed_all": None, "reset_peak_memory_stats": None, "ipc_collect": None,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, functools.partial(lambda answer, *_, **__: answer, answer))
    for name in ("Stream", "Event", "stream", "device", "device_of"):
        setattr(torch.cuda, name, _Nothing)
    torch.cuda.synchronize = lambda *_: _call(driver.cuCtxSynchronize)
    torch._C._cuda_getCurrentRawStream = lambda *_: 0  # type: ignore[attr-defined]
    torch.version.cuda = "13.0"


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return (isinstance(device, str) and device.startswith("cuda")) or (type(device) is int)


def _on_cpu(function: Any) -> Any:
    """Returns a function that makes tensors, with a device of "cuda" replaced by the CPU."""

    @functools.wraps(function)
    def made(*arguments: Any, **options: Any) -> Any:
        if _is_cuda(options.get("device")):
            options["device"] = "cpu"
        options.pop("pin_memory", None)
        return function(*arguments, **options)

    return made


def _for_every_device(function: Any) -> Any:
    """Returns a function that registers an operator for all devices, where it would for "cuda" alone."""

    @functools.wraps(function)
    def registers(*arguments: Any, **options: Any) -> Any:
        if options.get("device_types") == "cuda":
            options["device_types"] = None
        return function(*("cpu" if argument == "cuda" else argument for argument in arguments), **options)

    return registers


def _product(function: Any) -> Any:
    """Returns a product of matrices that may have another type than they have, as on a GPU."""

    @functools.wraps(function)
    def product(a: Any, b: Any, *, out_dtype: Any = None, out: Any = None) -> Any:
        if out_dtype is not None:
            return function(a.to(out_dtype), b.to(out_dtype))
        return function(a, b) if out is None else function(a, b, out=out)

    return product


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls)


def _install_tensors() -> None:
    tensor, cpu = torch.Tensor, torch.device("cpu")
    for name in _MAKERS:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    for name in _METHODS:
        setattr(tensor, name, _on_cpu(getattr(tensor, name)))
    to = tensor.to

    def moved(self: Any, *arguments: Any, **options: Any) -> Any:
        """A move to another device copies, so that a kernel does not write to what the CPU keeps."""
        places = [*arguments, options.get("device")]
        moves = any(isinstance(place, torch.device) or (type(place) in (str, int)) for place in places)
        arguments = tuple(cpu if _is_cuda(place) else place for place in arguments)
        if _is_cuda(options.get("device")):
            options["device"] = cpu
        return to(self, *arguments, **(options | {"copy": True} if moves else options))

    library = torch.library
    for name in ("custom_op", "register_kernel"):
        setattr(library, name, _for_every_device(getattr(library, name)))
    for name in ("mm", "bmm"):
        setattr(torch, name, _product(getattr(torch, name)))
    tensor.to = moved
    tensor.cuda = lambda self, *_, **__: self.clone()
    tensor.cpu = lambda self, *_, **__: self.clone()
    tensor.pin_memory = lambda self, *_: self
    tensor.record_stream = lambda self, *_: None
    tensor.get_device = lambda self: 0
    tensor.is_cuda = property(lambda self: True)
    tensor.is_cpu = property(lambda self: False)
    tensor.device = property(lambda self: torch.device("cuda", 0))
    torch.Generator = _Generator
    torch.nn.Module.cuda = lambda self, *_: self
    torch.set_default_device = lambda *_: None
