"""The kernels as a PyTorch function, on CUDA tensors, without copies.

    from harness.pytorch import matmul
    c = matmul(a, b)                                # a [M, K], b [N, K] -> a @ b.T, both bfloat16 or float16
    c = matmul(a, b, kernel="kernel6", cluster=(2, 1), out=c)

Tensors go to MAX by DLPack (shared memory, not copied). The call is asynchronous like any other CUDA call: it runs
after what is queued on PyTorch's current stream, and what is queued there afterwards runs after it. It is registered
as the operator ``blackwell_lab::matmul``, so that torch.compile traces through it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.library import custom_op

from harness.build.config import KernelConfig, make_config
from harness.errors import UsageProblem
from harness.gpus import arch_of_gpu, kind_of
from harness.problem import Shape
from harness.run.model import compile_artifact
from harness.run.tuned import configuration_for

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    kernel: str = "kernel8",
    out: torch.Tensor | None = None,
    tuned: bool = True,
    **options: Any,
) -> torch.Tensor:
    """C = A . B^T on the GPU that holds the tensors.

    Shapes: a [M, K], b [N, K], out [M, N]; contiguous, one dtype (bfloat16 or float16), one CUDA device; K and N
    multiples of 8. ``options``: those of ``harness.build.config.make_config`` (cluster, stages, ...). Without any, the
    configuration is what ``harness tune`` has found for this GPU and problem, if it has; tuned=False: the default.

    Raises ValueError for tensors or options that do not fit, CannotRun if MAX cannot compile or load the kernel. The
    first call of a configuration compiles it, which takes some ten seconds; the result is cached on disk.
    """
    _check(a, b, out)
    problem = (a.shape[0], b.shape[0], a.shape[1])
    config = _configuration(kernel, a.device, a.dtype, problem, tuple(sorted(options.items())), tuned)
    if out is None:
        out = torch.empty((a.shape[0], b.shape[0]), dtype=a.dtype, device=a.device)
    torch.ops.blackwell_lab.matmul(out, a, b, config)
    return out


@torch.compiler.assume_constant_result
def _configuration(
    kernel: str,
    device: torch.device,
    dtype: torch.dtype,
    problem: tuple[int, int, int],
    options: tuple[tuple[str, Any], ...],
    tuned: bool,
) -> str:
    """The configuration as text: a constant for torch.compile, which cannot trace how it is made."""
    arch, shape = arch_of_gpu(*torch.cuda.get_device_capability(device)), Shape(*problem)
    if tuned and not options:
        found = _tuned(kernel, arch, DTYPES[dtype], shape, kind_of(torch.cuda.get_device_name(device)))
        if found is not None:
            return found
    try:
        return make_config(kernel, arch=arch, dtype=DTYPES[dtype], shape=shape, **dict(options)).to_json()
    except UsageProblem as error:
        raise ValueError(str(error)) from None


@functools.lru_cache(maxsize=4096)
def _tuned(kernel: str, arch: str, dtype: str, shape: Shape, gpu: str) -> str | None:
    """Looked up once in a process."""
    found = configuration_for(gpu, kernel, arch, dtype, shape)
    return found.to_json() if found else None


def _check(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> None:
    named = {"a": a, "b": b} | ({"out": out} if out is not None else {})
    for name, tensor in named.items():
        if not tensor.is_cuda:
            raise ValueError(f"{name} is on {tensor.device}; the kernels need CUDA tensors")
        if tensor.device != a.device:
            raise ValueError(f"{name} is on {tensor.device} and a on {a.device}; move them to one device")
        if tensor.dtype not in DTYPES or tensor.dtype != a.dtype:
            raise ValueError(f"{name} is {tensor.dtype} and a {a.dtype}; both must be bfloat16 or both float16")
        if tensor.dim() != 2:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; it must be a matrix")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tuple(tensor.stride())}; call {name}.contiguous() first")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"a {tuple(a.shape)} and b {tuple(b.shape)} differ in K, their last dimension (b is [N, K])")
    if a.shape[1] % 8 or b.shape[0] % 8 or 0 in (*a.shape, *b.shape):
        raise ValueError(
            f"K {a.shape[1]} and N {b.shape[0]} must be multiples of 8 (16-byte rows for TMA), M at least 1"
        )
    if out is not None and tuple(out.shape) != (a.shape[0], b.shape[0]):
        raise ValueError(f"out is {tuple(out.shape)}; it must be {(a.shape[0], b.shape[0])}")


@custom_op("blackwell_lab::matmul", mutates_args=("out",), device_types="cuda")
def _matmul(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, config: str) -> None:
    from max.driver import Buffer

    index = a.device.index or 0
    model, device = _model(config, index)
    queue = torch.cuda.ExternalStream(device.default_queue.native_stream_handle, device=a.device)
    current = torch.cuda.current_stream(a.device)
    queue.wait_stream(current)
    model.execute(Buffer.from_dlpack(out), Buffer.from_dlpack(a.detach()), Buffer.from_dlpack(b.detach()))
    current.wait_stream(queue)


@_matmul.register_fake
def _(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, config: str) -> None:
    return None


@functools.cache
def _model(config: str, index: int) -> tuple[Any, Any]:
    artifact, _ = compile_artifact(KernelConfig.from_json(config))
    session, device = _session(index)
    return session.load(artifact), device


@functools.cache
def _session(index: int) -> tuple[Any, Any]:
    from max.driver import Accelerator
    from max.engine import InferenceSession

    device = Accelerator(index)
    return InferenceSession(devices=[device]), device
