"""Packed kernels on the GPU of this process: right, how many cycles, how much power.

    python -m harness.gpu_bench.kernels time FOLDER FILE.json     # check, then time each run; needs PyTorch
    python -m harness.gpu_bench.kernels check FOLDER FILE.json    # the runs that are only checked; needs PyTorch
    python -m harness.gpu_bench.kernels power FOLDER FILE.json    # a few runs for a second each; needs PyTorch
    python -m harness.gpu_bench.kernels once FOLDER               # launch each run once, for a profiler

`metrology.survey.pack` makes the folder. A time is taken from a CUDA graph of launches, one after the other, between
two small kernels that read the clock of every SM: the cycles of a launch are those that passed between them, whatever
the clock did meanwhile. The launches go through several sets of operands, together more than twice the L2 cache.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from metrology.survey import CHECK
from metrology.survey.micro.benchmark import OUT, Case
from metrology.survey.micro.launch import KERNEL_THREADS, LAUNCH, WHOLE_SM
from metrology.survey.micro.ptx import HEAD

from emugpu.cuda.driver import Driver, Parameter
from emugpu.cuda.launch import LoadedLaunchable
from emugpu.gpus import arch_of_gpu
from harness.epilogues import NONE, Epilogue, find_epilogue
from harness.run import telemetry

L2_BYTES = 60 << 20
GRAPH_SECONDS = 0.008
"""What the launches of a graph take, about; the number of them is between those of the operands and MOST_LAUNCHES."""
MOST_LAUNCHES = 500
SUPPOSED_FLOPS = 500e12
SUPPOSED_LAUNCH_SECONDS = 4e-6
REPLAYS = 7
"""Replays of a graph that are kept."""
WARM_UP_SECONDS = 0.04
"""Replays before them: an idle GPU has a lower clock, and takes a while to settle on one."""
SCALE_BLOCK, LARGEST_E4M3 = 128, 448.0
"""Of e4m3: elements along K, and rows of B, that share a scale factor."""
ALPHA = {"tensor": 0.5, "block": 1.0}
"""What C is multiplied by, by `scales`: the product of the factors of A and B, if each has one."""
FUSED = {"alpha": 0.5, "beta": 2.0}
"""Of a fused epilogue that takes them."""
ROUNDED, TINY = 2.0**-7, 2.0**-30
"""How far C may be from an epilogue that rounds: one unit in the last place of bf16, relative; and what counts as 0."""
KINDS = ("zeros", "normal")
POWER_KINDS = ("zeros", "-1, 0, 1", "normal")
POWER_SECONDS = 0.8
POWER_RUNS = (
    "kernel7 at 2048x2048x2048",
    "kernel7 at 4096x4096x4096",
    "kernel7 at 8192x8192x8192",
    "kernel8 at 4096x4096x4096",
    "kernel8 at 8192x8192x8192",
)

Launch = Callable[[int], None]
"""Takes a stream."""
Operands = dict[str, int]
"""Addresses of A, B and C, of the scale factors of A and B, and of what a fused epilogue takes."""


class Packed:
    """Runs of a folder, loaded when they are asked for."""

    def __init__(self, folder: Path, driver: Driver) -> None:
        self.folder, self.driver = folder, driver
        self.runs: list[dict[str, Any]] = json.loads((folder / "runs.json").read_text())
        self.timed = [run for run in self.runs if run.get("use") != CHECK]
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._workspaces: dict[str, int] = {}

    def launch(self, run: dict[str, Any], operands: Operands, *more: Parameter) -> Launch:
        """A function that launches the run. more: parameters after those of its plan."""
        plan = run["plan"]
        if run["code"] not in self._functions:
            image = (self.folder / run["code"]).read_bytes()
            self._functions[run["code"]] = self.driver.load(image, plan["entry"])
        function = self._functions[run["code"]]
        self.driver.allow_shared(function, plan["dynamic_smem"])
        given = (self._parameter(argument, run, operands) for argument in plan["arguments"])
        parameters = [*given, *more]
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
        """Each run's own, as another keeps sums where this one has counters. Zeroed once: a launch leaves them at 0."""
        if run not in self._workspaces:
            self._workspaces[run] = self.driver.allocate(size)
            self.driver.fill(self._workspaces[run], size)
        return self._workspaces[run]


def epilogue_of(run: dict[str, Any]) -> Epilogue:
    return find_epilogue(run["plan"]["config"]["epilogue"])


def groups_of(run: dict[str, Any]) -> list[int]:
    """Rows of each; empty if there are none, and one B."""
    groups: list[int] = run["plan"]["problem"].get("groups", [])
    return groups


def _factors(run: dict[str, Any]) -> dict[str, float]:
    """alpha and beta; other numbers are as planned."""
    if epilogue_of(run).name != NONE:
        return FUSED
    return {"alpha": ALPHA.get(run["plan"]["config"]["scales"], 1.0), "beta": 0.0}


class Clocks:
    """Two launches that read the clock of every SM, to be put before and after others."""

    def __init__(self, driver: Driver) -> None:
        gpu = driver.describe()
        self.sms = gpu["multiprocessors"]
        case = Case({}, (OUT, 0), HEAD, "bare", KERNEL_THREADS, self.sms, shared=WHOLE_SM)
        arch = arch_of_gpu(*(int(part) for part in gpu["compute_capability"].split(".")))
        what = replace(LAUNCH, cases=(case,)).launchable("bare", arch)
        self.readings = [LoadedLaunchable(what, driver) for _ in range(2)]
        self.launches = [launcher for reading in self.readings for launcher in reading.launchers]

    def between(self) -> tuple[float, float]:
        """Cycles and nanoseconds from the end of the first to the start of the second."""
        found = (reading.memory.download(OUT.name) for reading in self.readings)
        first, second = (words.reshape(self.sms, HEAD) for words in found)
        ends = dict(zip(first[:, 4].tolist(), first[:, 1].tolist(), strict=True))
        starts = zip(second[:, 4].tolist(), second[:, 0].tolist(), strict=True)
        cycles = [start - ends[sm] for sm, start in starts if sm in ends]
        return statistics.median(cycles), float(second[:, 2].min()) - float(first[:, 3].max())


# ---- with PyTorch ----
def _draw(kind: str, size: tuple[int, ...], dtype: Any) -> Any:
    import torch

    if kind == "zeros":
        return torch.zeros(size, device="cuda", dtype=dtype)
    if kind == "normal":
        return torch.randn(size, device="cuda").to(dtype)
    return torch.randint(-1, 2, size, device="cuda").to(dtype)


def _draw_fp8(kind: str, size: tuple[int, int, int]) -> dict[str, Any]:
    """A and B of e4m3 with scale factors of blocks, which kernels with one for each tensor do not read, and C. Normal
    values are quantised, so that the largest of each block is 448; others have random powers of two as factors.
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
    """What the elements of A or B stand for, without alpha, in float64."""
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
    """A as [M, K] and B as [K, N], with groups as [groups, K, N], however they lie."""
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
    """What is wrong with its result on small integers, where every order of sums is exact; None if nothing. Launched
    twice, as a kernel that keeps a counter must leave it as it found it."""
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


def _graph(packed: Packed, clocks: Clocks, run: dict[str, Any], sets: list[dict[str, Any]]) -> tuple[Any, int]:
    """A graph of launches between the clocks, and how many they are."""
    m, n, k = _size(run)
    supposed = 2 * m * n * k / SUPPOSED_FLOPS + SUPPOSED_LAUNCH_SECONDS
    count = min(MOST_LAUNCHES, max(len(sets), round(GRAPH_SECONDS / supposed)))
    launches = [packed.launch(run, _addresses(tensors)) for tensors in sets]
    turns = [launches[i % len(launches)] for i in range(count)]
    before, after = clocks.launches
    return packed.driver.graph([before, *turns, after]), count


def set_count(run: dict[str, Any]) -> int:
    m, n, k = _size(run)
    operand = 1 if run["plan"]["config"]["dtype"] == "e4m3" else 2
    b_rows = n * max(1, len(groups_of(run)))
    return max(2, -(-2 * L2_BYTES // (operand * (m * k + b_rows * k) + 2 * m * n)) + 1)


def time_run(packed: Packed, clocks: Clocks, run: dict[str, Any], sets: list[dict[str, Any]]) -> dict[str, Any]:
    """Samples: cycles and nanoseconds of a launch, in a row of launches."""
    graph, count = _graph(packed, clocks, run, sets)
    end = time.perf_counter() + WARM_UP_SECONDS
    while time.perf_counter() < end:
        graph()
    samples = []
    for _ in range(REPLAYS):
        graph()
        cycles, nanoseconds = clocks.between()
        samples.append((round(cycles / count, 1), round(nanoseconds / count, 2)))
    return {
        "launches": count,
        "sets": len(sets),
        "cycles": [c for c, _ in samples],
        "nanoseconds": [ns for _, ns in samples],
        "mhz": round(statistics.median(1000 * c / ns for c, ns in samples), 1),
    }


def _time(folder: Path, path: Path) -> None:
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")
    driver = Driver()
    packed, clocks = Packed(folder, driver), Clocks(driver)
    found: dict[str, Any] = {"gpu": driver.describe(), "torch": torch.__version__, "runs": []}
    found["clock_alone"] = _clock_alone(driver, clocks)
    by_size: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for run in packed.timed:
        by_size.setdefault(_size(run), []).append(run)
    for size, runs in by_size.items():
        entries = [{"name": run["name"], "use": run["use"], "size": size, "wrong": check(packed, run)} for run in runs]
        for kind in KINDS:
            sets = draw_sets(kind, runs[0], set_count(runs[0]))
            torch.cuda.synchronize()
            for run, entry in zip(runs, entries, strict=True):
                entry[kind] = time_run(packed, clocks, run, sets)
            del sets
            torch.cuda.empty_cache()
        found["runs"] += entries
        path.write_text(json.dumps(found), encoding="utf-8")
        wrong = [entry["name"] for entry in entries if entry["wrong"]]
        print(f"{size}: {len(entries)} runs, wrong: {wrong or 'none'}, {telemetry.read()}", flush=True)


def _check(folder: Path, path: Path) -> None:
    """Says which run comes next before it is launched: the last line of a part that hangs names it."""
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")
    packed = Packed(folder, Driver())
    found: list[dict[str, Any]] = []
    for run in packed.runs:
        if run.get("use") == CHECK:
            print(run["name"], flush=True)
            found.append({"name": run["name"], "wrong": check(packed, run)})
            path.write_text(json.dumps({"runs": found}), encoding="utf-8")
    print(f"{len(found)} runs, {sum(run['wrong'] is not None for run in found)} wrong")


def _clock_alone(driver: Driver, clocks: Clocks) -> dict[str, float]:
    """What lies between the two readings of the clock when nothing else does."""
    graph = driver.graph(clocks.launches)
    for _ in range(3):
        graph()
    cycles, nanoseconds = clocks.between()
    return {"cycles": cycles, "nanoseconds": nanoseconds}


def _power(folder: Path, path: Path) -> None:
    """Long enough for the power meter, which averages, and for the clock to settle."""
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")
    driver = Driver()
    packed, clocks = Packed(folder, driver), Clocks(driver)
    found: dict[str, Any] = {"gpu": driver.describe(), "idle": telemetry.read(), "runs": []}
    for run in packed.timed:
        if run["name"] not in POWER_RUNS:
            continue
        for kind in POWER_KINDS:
            sets = draw_sets(kind, run, set_count(run))
            torch.cuda.synchronize()
            graph, count = _graph(packed, clocks, run, sets)
            samples = []
            end = time.perf_counter() + POWER_SECONDS
            while time.perf_counter() < end:
                graph()
                cycles, nanoseconds = clocks.between()
                seen = telemetry.read()
                samples.append((round(cycles / count, 1), round(nanoseconds / count, 2), seen.get("power_w")))
            entry = {"name": run["name"], "kind": kind, "cycles_ns_watts": samples, "last": telemetry.read()}
            found["runs"].append(entry)
            path.write_text(json.dumps(found), encoding="utf-8")
            print(run["name"], kind, samples[-1], flush=True)
            del sets
            torch.cuda.empty_cache()


# ---- without ----
def _once(folder: Path) -> None:
    """On zeros, so that power has no say."""
    driver = Driver()
    packed = Packed(folder, driver)
    sizes = [_size(run) for run in packed.timed]
    lengths = {
        "A": max(m * k for m, _, k in sizes),
        "B": max(n * k for _, n, k in sizes),
        "C": max(m * n for m, n, _ in sizes),
    }
    operands = {name: driver.allocate(2 * length) for name, length in lengths.items()}
    for name, address in operands.items():
        driver.fill(address, 2 * lengths[name])
    for run in packed.timed:
        packed.launch(run, operands)(0)
        driver.synchronize()


def main(what: str, folder: str, path: str = "") -> None:
    if what == "once":
        _once(Path(folder))
    else:
        {"time": _time, "check": _check, "power": _power}[what](Path(folder), Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
