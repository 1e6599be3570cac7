"""PyTorch's functions without a GPU: tensors on the CPU, and a launcher that computes in float64 what a kernel is to.

Everything is the functions' own but compiling, loading and launching: a launch has the configuration and the shape that
were chosen for it, and addresses, as the real launcher's argument has them.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

import torch

from harness.compile.config import KernelConfig
from harness.epilogues import EPILOGUES
from harness.launch.launcher import Launch
from harness.problem import Shape
from harness.pytorch import calls, checks, operator

FORMAT = struct.Struct("=10Q" + 3 * "f4x")
_cpu = torch.library.Library("blackwell_lab", "IMPL")
_cpu.impl("gemm", operator._gemm, "CPU")


@dataclass(frozen=True)
class Launched:
    """One launch: what was prepared, and what it got."""

    config: KernelConfig
    shape: Shape
    c: int
    a: int
    b: int
    first: int
    second: int
    sizes: int
    factors: int
    numbers: tuple[float, float, float]


class FakeGpu:
    """Takes the place of the GPU. ``launched`` are the launches, ``prepared`` all that were made ready, in order.

    answer: what the launcher returns.
    """

    def __init__(self, monkeypatch: Any, capability: tuple[int, int] = (9, 0), name: str = "NVIDIA H200") -> None:
        self.launched: list[Launched] = []
        self.prepared: list[tuple[KernelConfig, Shape]] = []
        self.answer = 0
        monkeypatch.setattr(checks, "DEVICE", "cpu")
        monkeypatch.setattr(calls, "load", self._load)
        monkeypatch.setattr(calls, "launcher", lambda: self._launch)
        monkeypatch.setattr(calls, "current_stream", lambda index: 0)
        monkeypatch.setattr(calls, "_calls", {})
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)

    def _load(self, configs: list[KernelConfig], shapes: list[Shape], device: torch.device) -> list[Launch]:
        first = len(self.prepared)
        self.prepared += zip(configs, shapes, strict=True)
        return [Launch(first + n, None, config.label, None) for n, config in enumerate(configs)]

    def _launch(self, values: bytes) -> int:
        table, _, c, a, b, first, second, sizes, factors, _, *numbers = FORMAT.unpack(values)
        config, shape = self.prepared[table]
        launch = Launched(config, shape, c, a, b, first, second, sizes, factors, tuple(numbers))
        self.launched.append(launch)
        if not self.answer and config.dtype in ("bf16", "fp16") and not config.grouped and not factors:
            compute(launch)
        return self.answer


def compute(launch: Launched) -> None:
    """Writes C as the configuration defines it."""
    config, (m, n, k) = launch.config, (launch.shape.m, launch.shape.n, launch.shape.k)
    of_a, of_b, of_c = launch.shape.ld or (0, 0, 0)
    dtype = checks.TORCH_TYPES[config.dtype]
    a = _matrix(launch.a, m, k, of_a, dtype) if config.layout[0] == "n" else _matrix(launch.a, k, m, of_a, dtype).t()
    b = _matrix(launch.b, n, k, of_b, dtype) if config.layout[1] == "t" else _matrix(launch.b, k, n, of_b, dtype).t()
    epilogue = EPILOGUES[config.epilogue]
    given: dict[str, Any] = {"alpha": launch.numbers[0], "beta": launch.numbers[1]}
    if epilogue.takes("bias"):
        given["bias"] = _matrix(launch.first, 1, n, 0, dtype)[0].double().numpy()
    if epilogue.takes("residual"):
        given["residual"] = _matrix(launch.second, m, n, 0, dtype).double().numpy()
    exact = torch.from_numpy(epilogue.of((a.double() @ b.double().t()).numpy(), given))
    c = _matrix(launch.c, m, exact.shape[1], of_c, checks.TORCH_TYPES[config.out_dtype])
    c.copy_(exact)


def _matrix(address: int, rows: int, columns: int, ld: int, dtype: torch.dtype) -> torch.Tensor:
    """The matrix [rows, columns] that lies there, as a tensor on the same memory."""
    apart = ld or columns
    count = (rows - 1) * apart + columns
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype, count=count).as_strided((rows, columns), (apart, 1))
