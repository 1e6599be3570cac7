"""Packed kernels on the GPU of this process: their launch, their operands, and the check of their results.

`harness.gpu_bench.pack` makes the folder. Operands and results are PyTorch's.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emugpu.cuda.driver import Driver, Parameter
from harness.epilogues import NONE, Epilogue, find_epilogue

RUNS = "runs.json"
"""The file of a packed folder with the name, the launch plan and the code of each run."""
L2_BYTES = 60 << 20
SCALE_BLOCK, LARGEST_E4M3 = 128, 448.0
"""For e4m3: elements along K, and rows of B, that share a scale factor; and the largest value."""
ALPHA = {"tensor": 0.5, "block": 1.0}
"""The factor of C, by `scales`: the product of the factors of A and B, if each has one."""
FUSED = {"alpha": 0.5, "beta": 2.0}
"""The factors of a fused epilogue that takes them."""
ROUNDED, TINY = 2.0**-7, 2.0**-30
"""The largest relative error of C after an epilogue that rounds (one unit in the last place of bf16), and the magnitude
below which numbers count as 0.
"""

Launch = Callable[[int], None]
"""A function that takes a stream."""
Operands = dict[str, int]
"""Addresses of A, B and C, of the scale factors of A and B, and of a fused epilogue's operands."""


class Packed:
    """The runs of a folder. A kernel is loaded at its first use."""

    def __init__(self, folder: Path, driver: Driver) -> None:
        self.folder, self.driver = folder, driver
        self.runs: list[dict[str, Any]] = json.loads((folder / RUNS).read_text(encoding="utf-8"))
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._workspaces: dict[str, int] = {}

    def launch(self, run: dict[str, Any], operands: Operands) -> Launch:
        """Returns a function that launches the run."""
        plan = run["plan"]
        if run["code"] not in self._functions:
            image = (self.folder / run["code"]).read_bytes()
            self._functions[run["code"]] = self.driver.load(image, plan["entry"])
        function = self._functions[run["code"]]
        self.driver.allow_shared(function, plan["dynamic_smem"])
        parameters = [self._parameter(argument, run, operands) for argument in plan["arguments"]]
        return self.driver.launcher(
            function, parameters, plan["grid"], plan["block"], plan["dynamic_smem"], overlap=True
        )

    def _parameter(self, argument: dict[str, Any], run: dict[str, Any], operands: Operands) -> Parameter:
        if argument["kind"] == "tensor_map":
            return self.driver.tensor_map(
                operands[argument["tensor"]] + argument["offset"],
                argument["dtype"],
                argument["dims"],
                argument["strides"],
                argument["box"],
                argument["swizzle"],
                argument["l2_promotion"],
            )
        if argument["kind"] == "workspace":
            return ctypes.c_uint64(self._workspace(run["name"], argument["bytes"]))
        if argument["kind"] == "tensor":
            return ctypes.c_uint64(operands[argument["name"]])
        if argument["type"] == "f32":
            return ctypes.c_float(_factors(run).get(argument["name"], argument["value"]))
        value: int = argument["value"]
        return ctypes.c_uint64(value) if argument["type"] == "u64" else ctypes.c_uint32(value)

    def _workspace(self, run: str, size: int) -> int:
        """Returns the workspace of a run, its own because others would leave sums in place of its counters. It is
        zeroed once; a launch leaves the counters at 0.
        """
        if run not in self._workspaces:
            self._workspaces[run] = self.driver.allocate(size)
            self.driver.fill(self._workspaces[run], size)
        return self._workspaces[run]


def epilogue_of(run: dict[str, Any]) -> Epilogue:
    return find_epilogue(run["plan"]["config"]["epilogue"])


def groups_of(run: dict[str, Any]) -> list[int]:
    """Returns the rows of each group, or nothing if there are no groups and one B."""
    groups: list[int] = run["plan"]["problem"].get("groups", [])
    return groups


def _factors(run: dict[str, Any]) -> dict[str, float]:
    """Returns alpha and beta; other numbers are those of the plan."""
    if epilogue_of(run).name != NONE:
        return FUSED
    return {"alpha": ALPHA.get(run["plan"]["config"]["scales"], 1.0), "beta": 0.0}


def _draw(kind: str, size: tuple[int, ...], dtype: Any) -> Any:
    import torch

    if kind == "zeros":
        return torch.zeros(size, device="cuda", dtype=dtype)
    if kind == "normal":
        return torch.randn(size, device="cuda").to(dtype)
    return torch.randint(-1, 2, size, device="cuda").to(dtype)


def _draw_fp8(kind: str, size: tuple[int, int, int]) -> dict[str, Any]:
    """Draws A and B of e4m3 with scale factors of blocks, which kernels with one factor per tensor do not read, and C.

    Normal values are quantised so that the largest of each block is 448; others have random powers of two as factors.
    """
    import torch
    from torch.nn.functional import pad

    m, n, k = size
    found = {"C": torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)}
    for name, rows, shared in (("A", m, 1), ("B", n, SCALE_BLOCK)):
        values = _draw(kind, (rows, k), torch.float32)
        whole = pad(values, (0, -k % SCALE_BLOCK, 0, -rows % shared))
        blocks = whole.view(len(whole) // shared, shared, -1, SCALE_BLOCK)
        if kind == "normal":
            factors = blocks.abs().amax(dim=(1, 3)) / LARGEST_E4M3
            values = (blocks / factors[:, None, :, None]).view_as(whole)[:rows, :k]
        else:
            factors = torch.exp2(torch.randint(0, 3, (blocks.shape[0], blocks.shape[2]), device="cuda").float())
        found[name] = values.contiguous().to(torch.float8_e4m3fn)
        laid_out = factors.t() if name == "A" else factors
        found[f"{name} scales"] = pad(laid_out, (0, -laid_out.shape[1] % 4)).contiguous()
    return found


def _numbers(tensors: dict[str, Any], name: str, scales: str) -> Any:
    """Returns the numbers that the elements of A or B represent, without alpha, in float64."""
    values = tensors[name].double()
    if scales != "block":
        return values
    factors = tensors[f"{name} scales"].double()
    wide = factors.t() if name == "A" else factors.repeat_interleave(SCALE_BLOCK, dim=0)
    return values * wide.repeat_interleave(SCALE_BLOCK, dim=1)[: values.shape[0], : values.shape[1]]


def draw_sets(kind: str, run: dict[str, Any], count: int) -> list[dict[str, Any]]:
    import torch

    m, n, k = _size(run)
    if run["plan"]["config"]["dtype"] == "e4m3":
        return [_draw_fp8(kind, (m, n, k)) for _ in range(count)]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[run["plan"]["config"]["dtype"]]
    epilogue, groups, (of_a, of_b) = epilogue_of(run), groups_of(run), run["plan"]["config"]["layout"]
    b_rows = n * max(1, len(groups))
    sizes: dict[str, tuple[int, ...]] = {"A": (m, k) if of_a == "n" else (k, m), "residual": (m, n)}
    sizes |= {"B": (b_rows, k) if of_b == "t" else (k, b_rows), "bias": (len(groups), n) if groups else (n,)}
    drawn = [name for name in sizes if name in "AB" or epilogue.takes(name)]
    columns = n // 2 if epilogue.halves else n
    rows_of_groups = torch.tensor(groups, device="cuda", dtype=torch.int32)
    return [
        {
            **{name: _draw(kind, sizes[name], dtype) for name in drawn},
            "C": torch.full((m, columns), float("nan"), device="cuda", dtype=dtype),
            "sizes": rows_of_groups,
        }
        for _ in range(count)
    ]


def matrices(run: dict[str, Any], a: Any, b: Any) -> tuple[Any, Any]:
    """Returns A as [M, K] and B as [K, N], with groups as [groups, K, N], for any layout."""
    of_a, of_b = run["plan"]["config"]["layout"]
    a = a if of_a == "n" else a.t()
    if groups := groups_of(run):
        return a, b.view(len(groups), -1, b.shape[1]).transpose(1, 2)
    return a, b.t() if of_b == "t" else b


def _product(run: dict[str, Any], a: Any, b: Any) -> Any:
    import torch

    a, b = matrices(run, a, b)
    groups = groups_of(run)
    return torch.cat([x @ y for x, y in zip(a.split(groups), b, strict=True)]) if groups else a @ b


def _addresses(tensors: dict[str, Any]) -> Operands:
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def _size(run: dict[str, Any]) -> tuple[int, int, int]:
    problem = run["plan"]["problem"]
    return problem["m"], problem["n"], problem["k"]


def check(packed: Packed, run: dict[str, Any]) -> str | None:
    """Returns the error of a result on small integers, for which every order of sums is exact, or None. Launches twice,
    because a kernel must leave its counter at its start value.
    """
    import torch

    [tensors] = draw_sets("-1, 0, 1", run, 1)
    scales, epilogue = run["plan"]["config"]["scales"], epilogue_of(run)
    a, b = (_numbers(tensors, name, scales) for name in "AB")
    product, bound = _product(run, a, b), 0.0
    if epilogue.name == NONE:
        expected = (ALPHA.get(scales, 1.0) * product).to(tensors["C"].dtype)
    else:
        given = {name: tensors[name].double().cpu().numpy() for name in ("bias", "residual") if name in tensors}
        exact = torch.from_numpy(epilogue.of(product.cpu().numpy(), given | FUSED)).cuda()
        expected, bound = exact.to(tensors["C"].dtype), 0.0 if epilogue.is_exact else ROUNDED * exact.abs() + TINY
    for _ in range(2):
        tensors["C"].fill_(float("nan"))
        torch.cuda.synchronize()
        packed.launch(run, _addresses(tensors))(0)
        torch.cuda.synchronize()
        right = (tensors["C"].double() - expected.double()).abs() <= bound
        if not right.all():
            return f"{int((~right).sum())} of {expected.numel()} elements are wrong"
    return None


def set_count(run: dict[str, Any]) -> int:
    m, n, k = _size(run)
    operand = 1 if run["plan"]["config"]["dtype"] == "e4m3" else 2
    b_rows = n * max(1, len(groups_of(run)))
    return max(2, -(-2 * L2_BYTES // (operand * (m * k + b_rows * k) + 2 * m * n)) + 1)
