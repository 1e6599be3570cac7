"""What `torch.cuda` answers for the emulated GPU.

Most of `torch.cuda` is Python over functions of `torch._C`, which a build for CPUs lacks: they are added here. What
the Python itself decides when it is imported is replaced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from emugpu.pytorch import statistics, storages, streams
from emugpu.pytorch.driver import attribute, call

CUDA_VERSION = "13.0"


def install(torch: Any, library: ctypes.CDLL) -> None:
    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    _add_functions(torch._C, library)
    _replace(torch)
    torch._C._dynamo.guards._empty_strided_cuda = lambda size, stride, dtype: torch.empty_strided(
        size, stride, dtype=dtype, device="cuda"
    )
    storages.install(torch, library)
    streams.install(library)
    torch.version.cuda = CUDA_VERSION


def _add_functions(binding: Any, library: ctypes.CDLL) -> None:
    added: dict[str, Any] = {
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": _only_device,
        "_cuda_exchangeDevice": _only_device,
        "_cuda_maybeExchangeDevice": _only_device,
        "_cuda_canDeviceAccessPeer": lambda *_: False,
        "_cuda_getArchFlags": lambda: "sm_{0.major}{0.minor}".format(_properties()),
        "_cuda_getCurrentRawStream": lambda *_: streams.current().cuda_stream,
        "_cuda_synchronize": lambda: call("cuCtxSynchronize"),
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_emptyCache": lambda: None,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: False,  # so TorchInductor captures no graphs
        "_cuda_ipc_collect": lambda: None,
        "_cuda_memorySnapshot": _refused("_memorySnapshot", "memory snapshots", "torch.cuda.memory_stats counts"),
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_set_sync_debug_mode": lambda *_: None,
        "_cuda_isInBadFork": lambda: False,
        **statistics.functions(library),
    }
    for name, function in added.items():
        setattr(binding, name, function)


def _replace(torch: Any) -> None:
    cuda = torch.cuda
    of_graphs = ("CUDAGraph", "graph", "make_graphed_callables", "graph_pool_handle")
    graphs = {name: _refused(name, "CUDA graphs", "run the code without capturing it") for name in of_graphs}
    replaced: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "_initialized": True,
        "_exchange_device": lambda device: _only_device(device),  # TorchDynamo tells the two apart
        "_maybe_exchange_device": lambda device: _only_device(device),
        "default_generators": (torch.default_generator,),
        "_get_device_properties": lambda *_: _properties(),
        "mem_get_info": lambda *_: _memory(),
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": lambda *_, **__: True,
        "current_stream": streams.current,
        "default_stream": streams.default,
        "set_stream": streams.make_current,
        "Stream": streams.Stream,
        "ExternalStream": streams.ExternalStream,
        "Event": streams.Event,
        **graphs,
        **{name: type(name, (), {"__init__": graphs[name]}) for name in ("CUDAGraph", "graph")},
    }
    for name, value in replaced.items():
        setattr(cuda, name, value)
    cuda.memory.mem_get_info = replaced["mem_get_info"]
    for name in (*of_graphs, "is_current_stream_capturing"):
        setattr(cuda.graphs, name, replaced[name])
    for name in ("Stream", "ExternalStream", "Event"):
        setattr(cuda.streams, name, replaced[name])
    of_nvtx = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA")
    cuda.nvtx._nvtx = SimpleNamespace(**dict.fromkeys(of_nvtx, lambda *_: 0))


def _only_device(device: Any) -> int:
    """Returns the device that was current: there is one."""
    index = device if isinstance(device, int) else getattr(device, "index", None) or 0
    if index > 0:
        raise RuntimeError(f"CUDA error: invalid device ordinal: cuda:{index}; the emulated GPU is cuda:0")
    return 0


def _refused(name: str, what: str, instead: str) -> Callable[..., None]:
    """Returns a function of torch.cuda that is not supported: it tells the log, and raises an error of one line."""

    def refuse(*_: Any, **__: Any) -> None:
        call("emulatedTensorRefused", f"torch.cuda.{name}".encode())
        raise RuntimeError(f"{what} are not supported on the emulated GPU; {instead}")

    return refuse


@cache
def _properties() -> SimpleNamespace:
    name, identity = ctypes.create_string_buffer(100), (ctypes.c_ubyte * 16)()
    call("cuDeviceGetName", name, len(name), 0)
    call("cuDeviceGetUuid_v2", identity, 0)
    return SimpleNamespace(
        name=name.value.decode(), major=attribute(75), minor=attribute(76), total_memory=_memory()[1],
        multi_processor_count=attribute(16), warp_size=attribute(10), regs_per_multiprocessor=attribute(82),
        max_threads_per_multi_processor=attribute(39), max_threads_per_block=attribute(1),
        shared_memory_per_block=attribute(8), shared_memory_per_block_optin=attribute(97),
        shared_memory_per_multiprocessor=attribute(81), L2_cache_size=attribute(38), is_integrated=0,
        is_multi_gpu_board=0, gcnArchName="", uuid=UUID(bytes=bytes(identity)),
        clock_rate=attribute(13), memory_clock_rate=attribute(36), memory_bus_width=attribute(37),
    )  # fmt: skip


def _memory() -> tuple[int, int]:
    """Returns how many bytes of device memory are free, and how many there are."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value
