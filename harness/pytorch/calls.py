"""Calls a kernel on tensors. What a call with the same types, shapes and strides has found is kept, so a later one only
allocates C, takes the addresses and launches.
"""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from emugpu.errors import CannotRun
from emugpu.gpus import arch_of_gpu, kind_of
from harness.compile.artifacts import build_with_notice
from harness.launch.configure import configuration, equal_groups
from harness.launch.launcher import (
    MAP_ALIGNMENT,
    MISALIGNED,
    OTHER_ALIGNMENT,
    PACK,
    KernelLoader,
    Launch,
    Workspace,
    launcher,
)
from harness.problem import Shape
from harness.pytorch.checks import Asked, Numbers, Problem, Stored, Tensors, check

Product: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""C; for e4m3 C and its scale factors, float32 [ceil(columns / 128), M], rows padded to 16 bytes; for a block-scaled
format C as bytes and its scale factors in atoms.
"""
MOST_CALLS = 8192
"""Calls that are kept. The oldest goes first; a new length of sequence makes a new one."""

current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""Returns the handle of PyTorch's current stream on a GPU. PyTorch without CUDA has none."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is known about a call beside its addresses. ``launch`` is None if there is nothing to compute."""

    c_shape: tuple[int, ...]
    c_dtype: torch.dtype
    factors: Stored | None
    device: torch.device
    index: int
    table: int
    workspace: Workspace | None
    launch: Launch | None


_calls: dict[Any, Call] = {}
_changing_calls = threading.Lock()
_workspaces: dict[Any, torch.Tensor] = {}


def run(asked: tuple[Any, ...], tensors: Tensors, numbers: Numbers, factors: torch.Tensor | None = None) -> Product:
    """Computes the product. ``asked`` has the fields of `Asked`; ``factors`` is memory for the scale factors of C."""
    a, b, first, second, group_sizes, out = tensors
    alpha, beta, c_scale = numbers
    key = (
        asked, a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device(),
        None if first is None else (first.shape, first.stride(), first.dtype, first.get_device()),
        None if second is None else (second.shape, second.stride(), second.dtype, second.get_device()),
        None if group_sizes is None else (
            group_sizes.shape, group_sizes.stride(), group_sizes.dtype, group_sizes.get_device(),
        ),
        None if out is None else (out.shape, out.stride(), out.dtype, out.get_device()),
    )  # fmt: skip
    call = _calls.get(key)
    if call is None:
        call = _prepare(Asked(*asked), tensors)
        with _changing_calls:
            _calls[key] = call
            if len(_calls) > MOST_CALLS:
                del _calls[next(iter(_calls))]
    if out is None:
        out = torch.empty(call.c_shape, dtype=call.c_dtype, device=call.device)
    else:
        torch.autograd.graph.increment_version(out)
    if call.factors is not None and factors is None:
        factors = torch.empty(call.factors[0], dtype=call.factors[1], device=call.device)
    if call.launch is not None:
        stream = current_stream(call.index)
        values = PACK(
            call.table,
            stream,
            out.data_ptr(),
            a.data_ptr(),
            b.data_ptr(),
            0 if first is None else first.data_ptr(),
            0 if second is None else second.data_ptr(),
            0 if group_sizes is None else group_sizes.data_ptr(),
            0 if factors is None else factors.data_ptr(),
            0 if call.workspace is None else _workspace(call.workspace, call.device, stream),
            alpha,
            beta,
            c_scale,
        )
        code = launcher()(values)
        if code:
            raise _error(code, call, asked, (out, *tensors[:-1], factors))
    return out if factors is None else (out, factors)


def _prepare(asked: Asked, tensors: Tensors) -> Call:
    a = tensors[0]
    problem = check(asked, tensors)
    launch = None
    if problem.sizes[0] or not problem.groups:
        launch = prepare(asked, [problem], a.device)[0]
    table, workspace = (launch.table, launch.workspace) if launch else (0, None)
    return Call(*problem.c, problem.factors, a.device, a.get_device(), table, workspace, launch)


def prepare(asked: Asked, problems: list[Problem], device: torch.device) -> list[Launch]:
    """Compiles and loads the kernels for these problems, all in one run of the compiler, unless they are in the cache
    or on the GPU. Raises ValueError for options that do not fit, CannotRun if a kernel cannot be compiled or loaded.
    """
    arch = arch_of_gpu(*torch.cuda.get_device_capability(device))
    kind = kind_of(torch.cuda.get_device_name(device))
    shapes = [Shape(*each.sizes, equal_groups(each.sizes[0], each.groups), each.ld) for each in problems]
    configs = [
        configuration(asked.kernel, arch, kind, shape, asked.tuned and not each.groups, dict(each.options))
        for each, shape in zip(problems, shapes, strict=True)
    ]
    return load(configs, shapes, device)


def load(configs: list[Any], shapes: list[Shape], device: torch.device) -> list[Launch]:
    """Returns a launch for each configuration and shape."""
    with ThreadPoolExecutor(1) as beside:
        compiled = beside.submit(launcher)  # it is compiled, too, the first time on a machine
        artifacts = build_with_notice(configs)
        compiled.result()
    plans = [artifact.plan(shape) for artifact, shape in zip(artifacts, shapes, strict=True)]
    with torch.cuda.device(device):
        loader = _loader(device.index)
        return [loader.prepare(artifact, plan) for artifact, plan in zip(artifacts, plans, strict=True)]


@functools.cache
def _loader(index: int) -> KernelLoader:
    return KernelLoader(index)


def _workspace(wanted: Workspace, device: torch.device, stream: int) -> int:
    """Returns the address of a workspace for a launch on this stream. A launch leaves the counters at 0, and the next
    one on the stream waits for it, so they share it. Launches in a CUDA graph have their own, which the graph zeroes,
    because graphs that were captured on one stream can run at the same time.
    """
    with torch.cuda.device(device):  # PyTorch's current one may be another
        captured = torch.cuda.is_current_stream_capturing()
    if captured:
        return _new_workspace(wanted, device).data_ptr()
    key = device.index, stream, wanted
    found = _workspaces.get(key)
    if found is None:
        found = _workspaces.setdefault(key, _new_workspace(wanted, device))  # another thread may have been faster
    return found.data_ptr()


def _new_workspace(wanted: Workspace, device: torch.device) -> torch.Tensor:
    made = torch.empty((-(-wanted.bytes // 4),), dtype=torch.int32, device=device)
    made[: wanted.counters].zero_()
    return made


def _error(code: int, call: Call, asked: tuple[Any, ...], given: tuple[torch.Tensor | None, ...]) -> Exception:
    """Returns what to raise for an answer of the launcher that is not 0."""
    number = code - MISALIGNED
    if number < 0:
        assert call.launch is not None
        return CannotRun(f"{call.launch.label}: the driver refuses the launch (CUDA driver API error {code})")
    scaled = Asked(*asked).dtype
    more = ("a_scales", "b_scales") if scaled else ("bias", "residual")
    name = ("out", "a", "b", *more, "group_sizes", "the scale factors of out")[number]
    tensor = given[number]
    assert tensor is not None
    multiple = MAP_ALIGNMENT if number < 3 or scaled else OTHER_ALIGNMENT
    rule = f"it must be a multiple of {multiple} bytes: copy it"
    return ValueError(f"{name} begins at the address {tensor.data_ptr():#x}; {rule}")
