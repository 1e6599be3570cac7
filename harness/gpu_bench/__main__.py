"""Times kernels against cuBLAS on one GPU, without MAX: how `nvidia-h200-kernel8.json` is measured.

    python -m harness.gpu_bench pack FOLDER --shape 4096 --kernel kernel8 --kernel "kernel8 scheduler=dynamic"
    cd FOLDER
    python -m harness.gpu_bench turns . --processes 3 --json FILE
    python -m harness.gpu_bench alone . --json FILE
    ncu --clock-control none --metrics sm__cycles_elapsed.max,... python -m harness.gpu_bench once .

`pack` compiles for sm_90a and needs Mojo and ptxas, but no GPU. Carry the folder to a machine with a GPU: that machine
needs NumPy, PyTorch, click and pynvml (nvidia-ml-py). A kernel is launched as its launch plan says.

"cublas" is the plain product. A kernel with a fused epilogue (``--kernel "kernel8 epilogue=bias-gelu"``) is compared
with PyTorch's operations for the same function, too ("torch bias-gelu"): cuBLASLt's own bias, bias with GELU, and beta
times a residual, or a second kernel of PyTorch's. So are groups (``--groups 40,0,248``, each with its own B), which
"cublas" multiplies one after the other. Another memory layout (``layout=tn``) needs a folder of its own.

e4m3 (``--kernel "kernel8 dtype=e4m3 scales=block"``) is compared with cuBLASLt with one factor for A and one for B and
fast accumulation, as kernels with `scales=tensor` have it, and, where cuBLASLt can, with the same factors of blocks
("cublas-blocks"). It needs a folder of its own.

A sample is the time of a CUDA graph of launches that go through several sets of inputs, together twice the L2 cache, so
that no launch finds its operands there (``--warm``: one set, which stays there as far as it fits). Every result is
first compared with that of cuBLAS on small integers, where both are exact.

`turns` lets the contestants take turns graph by graph, in an order that is drawn anew for each turn: they share one
clock, as at the power limit the previous contestant matters. The first quarter of the samples is warm-up: `ratios`
leaves it out. `alone` gives each contestant the GPU for seconds, back to back, and lets the GPU cool before the next
one: each has the clock that its own power allows, and its energy is measured alone.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import click

from emugpu.cuda.driver import Driver
from emugpu.errors import CannotRun, ReportedError
from harness.epilogues import NONE
from harness.gpu_bench.kernels import (
    ALPHA,
    FUSED,
    RUNS,
    SCALE_BLOCK,
    Packed,
    check,
    draw_sets,
    epilogue_of,
    groups_of,
    matrices,
    set_count,
)

ARCH = "sm_90a"
SAMPLE_SECONDS = 0.025
ROUNDS = 20
ALONE_SECONDS = 5.5
"""Time for which a contestant runs alone. The first SETTLING seconds, in which clock and power settle, do not count."""
SETTLING = 1.0
COOLING_SECONDS = 4.0
"""Longest pause before the next contestant. It ends when the GPU is as cool as before the first."""
IN_FLIGHT = 4
"""Graphs that wait on the GPU while one runs, so that it is never idle."""
INPUTS = ("normal", "-1, 0, 1")


class TimedKernel:
    """One kernel on one problem. It needs PyTorch's context."""

    def __init__(self, run: dict[str, Any], packed: Packed) -> None:
        self.run, self.packed = run, packed
        self.name: str = run["name"].partition(" at ")[0]

    def prepare(self, tensors: dict[str, Any]) -> Callable[[], None]:
        """Returns a function that launches on PyTorch's current stream."""
        import torch

        launch = self.packed.launch(self.run, {name: tensor.data_ptr() for name, tensor in tensors.items()})
        return lambda: launch(torch.cuda.current_stream().cuda_stream)


def cublas(run: dict[str, Any], tensors: dict[str, Any]) -> Callable[[], Any]:
    """Returns a function for the plain product; with groups, one after the other."""
    import torch

    if "A scales" in tensors:
        one, alpha = (torch.tensor(value, device="cuda") for value in (1.0, ALPHA["tensor"]))
        return _scaled_mm(tensors, alpha, one, fast=True)
    a, b = matrices(run, tensors["A"], tensors["B"])
    groups, c = groups_of(run), tensors["C"]
    out = c if c.shape[1] == b.shape[-1] else torch.empty((a.shape[0], b.shape[-1]), device="cuda", dtype=c.dtype)
    if not groups:
        return lambda: torch.matmul(a, b, out=out)
    each = [(x, y, z) for x, y, z in zip(a.split(groups), b, out.split(groups), strict=True) if len(x)]

    def one_by_one() -> None:
        for x, y, z in each:
            torch.matmul(x, y, out=z)

    return one_by_one


def torch_fused(run: dict[str, Any], tensors: dict[str, Any]) -> Callable[[], Any] | None:
    """Returns PyTorch's operation for groups, or for a fused epilogue, or None if PyTorch has none."""
    import torch
    from torch.nn.functional import silu

    a, b = matrices(run, tensors["A"], tensors["B"])
    name, c, half = epilogue_of(run).name, tensors["C"], b.shape[-1] // 2
    if groups_of(run):
        ends = tensors["sizes"].cumsum(0, dtype=torch.int32)
        return (lambda: torch._grouped_mm(a, b, ends)) if name == NONE else None
    gate_up = torch.empty((a.shape[0], b.shape[-1]), device="cuda", dtype=c.dtype)

    def product() -> Any:
        return torch.matmul(a, b, out=gate_up)

    ways: dict[str, Callable[[], Any]] = {
        "bias": lambda: torch.addmm(tensors["bias"], a, b, out=c),
        "bias-gelu": lambda: torch._addmm_activation(tensors["bias"], a, b, use_gelu=True, out=c),
        "bias-relu": lambda: torch._addmm_activation(tensors["bias"], a, b, out=c),
        "residual": lambda: torch.addmm(tensors["residual"], a, b, alpha=FUSED["alpha"], beta=FUSED["beta"], out=c),
        "silu": lambda: silu(product(), inplace=True),
        "swiglu": lambda: torch.mul(silu(product()[:, :half], inplace=True), gate_up[:, half:], out=c),
    }
    return ways.get(name)


def _scaled_mm(tensors: dict[str, Any], of_a: Any, of_b: Any, *, fast: bool) -> Callable[[], Any]:
    import torch

    a, b, c = tensors["A"], tensors["B"].t(), tensors["C"]
    return lambda: torch._scaled_mm(a, b, of_a, of_b, out_dtype=c.dtype, use_fast_accum=fast, out=c)


def cublas_blocks(tensors: dict[str, Any]) -> Callable[[], None] | None:
    """Returns cuBLASLt with scale factors of blocks. Returns None with a message if it refuses the problem."""
    blocks = -(-tensors["A"].shape[1] // SCALE_BLOCK)
    of_a = tensors["A scales"].t()[: tensors["A"].shape[0]]
    of_b = tensors["B scales"][:, :blocks].t()
    launch = _scaled_mm(tensors, of_a, of_b, fast=False)
    try:
        launch()
    except RuntimeError as error:
        click.echo(f"no cublas-blocks: {' '.join(str(error).split())[:300]}", err=True)
        return None
    return launch


def graph_of(launches: list[Callable[[], None]], count: int) -> Any:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            launches[i % len(launches)]()
    return graph


def seconds_of(graph: Any, while_it_runs: Callable[[], None] = lambda: None) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    while_it_runs()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def graphs_of(kernels: list[TimedKernel], kind: str, warm: bool = False) -> tuple[dict[str, Any], int, int]:
    """Returns a graph of launches for cuBLAS and for each kernel, the launches in each, and the number of sets of
    inputs.
    """
    import torch

    count = 1 if warm else set_count(kernels[0].run)
    by_epilogue = {epilogue_of(kernel.run).name: kernel.run for kernel in kernels}
    drawn = {name: draw_sets(kind, run, count) for name, run in by_epilogue.items()}
    sets = next(iter(drawn.values()))
    contestants = {"cublas": [cublas(kernels[0].run, s) for s in sets]}
    if any(kernel.run["plan"]["config"]["scales"] == "block" for kernel in kernels):
        with_blocks = [launch for launch in takewhile(bool, map(cublas_blocks, sets)) if launch]
        contestants |= {"cublas-blocks": with_blocks} if len(with_blocks) == len(sets) else {}
    for name, run in by_epilogue.items():
        fused = [launch for launch in (torch_fused(run, s) for s in drawn[name]) if launch]
        contestants |= {f"torch {name if name != NONE else 'grouped'}": fused} if fused else {}
    for kernel in kernels:
        contestants[kernel.name] = [kernel.prepare(s) for s in drawn[epilogue_of(kernel.run).name]]
    for launches in contestants.values():
        launches[0]()
    torch.cuda.synchronize()
    once = seconds_of(graph_of(contestants["cublas"], 10)) / 10
    count = max(len(sets), round(SAMPLE_SECONDS / once))
    return {name: graph_of(launches, count) for name, launches in contestants.items()}, count, len(sets)


def measure(kernels: list[TimedKernel], kind: str, warm: bool) -> dict[str, Any]:
    """Samples cuBLAS and each kernel in turn. Returns seconds per launch."""
    import pynvml

    graphs, count, sets = graphs_of(kernels, kind, warm)
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    telemetry: list[tuple[int, int]] = []

    def look() -> None:
        clock = pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)
        telemetry.append((clock, round(pynvml.nvmlDeviceGetPowerUsage(device) / 1000)))

    samples: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    for turn in range(ROUNDS):
        for name in random.Random(turn).sample(names, len(names)):
            samples[name].append(round(seconds_of(graphs[name], look) / count, 9))
    late = telemetry[len(telemetry) // 4 :]
    return {
        "input_sets": sets,
        "launches_per_sample": count,
        "sm_clock_mhz_and_power_w": [round(statistics.median(values)) for values in zip(*late, strict=True)],
        "seconds": samples,
    }


def measure_alone(kernels: list[TimedKernel], kind: str, rounds: int) -> dict[str, Any]:
    """Measures cuBLAS and each kernel alone, each for seconds, in turns. Returns lists with one entry for each
    round.
    """
    import pynvml

    graphs, count, sets = graphs_of(kernels, kind)
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    cool = _celsius(device)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            found[name].append(steady_state(graph, count, device))
            end = time.monotonic() + COOLING_SECONDS
            while time.monotonic() < end and _celsius(device) > cool:
                time.sleep(0.1)
    return {"input_sets": sets, "launches_per_graph": count, "celsius_before": cool, "alone": found}


def steady_state(graph: Any, count: int, device: Any) -> dict[str, float]:
    """Replays a graph of this many launches back to back. Returns, for the steady part, seconds and joules per launch,
    the median of the SM clock in MHz and of the power in W, and the temperature at its end.
    """
    import pynvml
    import torch

    torch.cuda.synchronize()
    start, events, joules, clocks, watts = time.monotonic(), [], [], [], []
    while time.monotonic() < start + ALONE_SECONDS:
        graph.replay()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) > IN_FLIGHT:
            events[-1 - IN_FLIGHT].synchronize()
        if time.monotonic() > start + SETTLING:
            joules.append((len(events) - 1 - IN_FLIGHT, pynvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1000))
            clocks.append(pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM))
            watts.append(pynvml.nvmlDeviceGetPowerUsage(device) / 1000)
    celsius = _celsius(device)
    torch.cuda.synchronize()
    first, last = joules[0][0], joules[-1][0]
    # The energy counter advances some ten times a second; measuring from one step to another cuts nothing off.
    steps = [now for before, now in pairwise(joules) if now[1] != before[1]]
    (since, before), (until, after) = steps[0], steps[-1]
    return {
        "seconds": round(events[first].elapsed_time(events[last]) / 1000 / ((last - first) * count), 9),
        "joules": round((after - before) / ((until - since) * count), 6),
        "sm_clock_mhz": statistics.median(clocks),
        "watts": round(statistics.median(watts), 1),
        "celsius": celsius,
    }


def _celsius(device: Any) -> int:
    import pynvml

    degrees: int = pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU)
    return degrees


def ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Returns the speed relative to cuBLAS: the median over turns, without the first quarter."""
    warm = len(seconds["cublas"]) // 4
    return {
        name: statistics.median(a / b for a, b in zip(seconds["cublas"][warm:], times[warm:], strict=True))
        for name, times in seconds.items()
    }


def load(folder: Path) -> dict[tuple[int, int, int], list[TimedKernel]]:
    if missing := [name for name in ("torch", "pynvml") if find_spec(name) is None]:
        raise CannotRun(f"{' and '.join(missing)} not installed; this machine needs torch and nvidia-ml-py")
    import torch

    driver = Driver()
    torch.cuda.init()
    torch.empty(1, device="cuda")
    packed = Packed(folder, driver)
    loaded: dict[tuple[int, int, int], list[TimedKernel]] = {}
    for run in packed.runs:
        problem = run["plan"]["problem"]
        loaded.setdefault((problem["m"], problem["n"], problem["k"]), []).append(TimedKernel(run, packed))
    return loaded


def load_checked(folder: Path) -> dict[tuple[int, int, int], list[TimedKernel]]:
    """Loads the kernels, after a check that their results are right."""
    loaded = load(folder)
    for shape, kernels in loaded.items():
        for kernel in kernels:
            if wrong := check(kernel.packed, kernel.run):
                raise click.ClickException(f"{kernel.name} at {' x '.join(map(str, shape))}: {wrong}")
    return loaded


# ---- commands --------------------------------------------------------------------------------------------------------
@click.group()
def main() -> None:
    """Time kernels against cuBLAS from CUDA graphs."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--shape", "shapes", multiple=True, required=True, help="M,N,K or one number for all three.")
@click.option("--groups", help="Rows of A that each group has, as harness run takes them; of every shape.")
@click.option("--kernel", "kernels", multiple=True, required=True, help='Such as "kernel8 raster_group=4".')
def pack(folder: Path, shapes: tuple[str, ...], groups: str | None, kernels: tuple[str, ...]) -> None:
    """Compile every kernel for every shape into a new folder, with the code that times them."""
    if find_spec("harness.compile") is None:
        raise CannotRun("a packed folder has no compiler; pack in a checkout of the project")
    from harness.gpu_bench.pack import pack_runs, parse_runs

    pack_runs(parse_runs(kernels, shapes, groups), ARCH, folder)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--inputs", type=click.Choice(INPUTS), multiple=True, default=INPUTS)
@click.option("--processes", type=click.IntRange(1), default=3, show_default=True)
@click.option("--warm", is_flag=True, help="One set of inputs: what fits into the L2 cache is found there.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the samples there.")
@click.option("--child", type=int, hidden=True)
def turns(
    folder: Path, inputs: tuple[str, ...], processes: int, warm: bool, json_path: Path | None, child: int | None
) -> None:
    """Check, then time in several processes, one after the other."""
    if child is not None:
        for shape, kernels in load_checked(folder).items():
            for kind in inputs:
                about = {"process": child, "shape": shape, "inputs": kind}
                print(json.dumps(about | measure(kernels, kind, warm)), flush=True)
        return
    found = []
    for process in range(processes):
        words = [word for kind in inputs for word in ("--inputs", kind)]
        words += ["--warm"] if warm else []
        command = [sys.executable, "-m", "harness.gpu_bench", "turns", str(folder), *words, "--child", str(process)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        found += [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode:
            raise click.ClickException(f"process {process} ended with code {done.returncode}")
    if json_path:
        write(json_path, folder, found)
    for line in table(found):
        click.echo(line)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--inputs", type=click.Choice(INPUTS), multiple=True, default=INPUTS)
@click.option("--shape", "shapes", multiple=True, help="Only these of the folder, as M,N,K.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write what was measured there.")
def alone(folder: Path, inputs: tuple[str, ...], shapes: tuple[str, ...], rounds: int, json_path: Path | None) -> None:
    """Check, then run each contestant alone on the GPU, in turns."""
    found: list[dict[str, Any]] = []
    for shape, kernels in load_checked(folder).items():
        if shapes and ",".join(map(str, shape)) not in shapes:
            continue
        for kind in inputs:
            found.append({"shape": shape, "inputs": kind, **measure_alone(kernels, kind, rounds)})
            for line in table_alone(found[-1]):
                click.echo(line)
            if json_path:
                write(json_path, folder, found)


def table_alone(run: dict[str, Any]) -> list[str]:
    """Returns, for each contestant, the medians over the rounds, and the range of the ratio to cuBLAS round by
    round.
    """
    m, n, k = run["shape"]
    lines = []
    for name, rounds in run["alone"].items():
        pairs = sorted(a["seconds"] / b["seconds"] for a, b in zip(run["alone"]["cublas"], rounds, strict=True))
        middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        tflops = 2 * m * n * k / middle["seconds"] / 1e12
        lines.append(
            f"{m}x{n}x{k} {run['inputs']:9} {middle['sm_clock_mhz']:.0f} MHz {middle['watts']:.0f} W "
            f"{middle['celsius']:.0f} C {1000 * middle['joules']:8.2f} mJ {tflops:6.1f} "
            f"TFLOPS {statistics.median(pairs):.4f} [{pairs[0]:.4f}, {pairs[-1]:.4f}] {name}"
        )
    return lines


def write(path: Path, folder: Path, found: list[dict[str, Any]]) -> None:
    """Writes the samples, one run per line, with a description of the runs."""
    import torch

    runs = json.loads((folder / RUNS).read_text(encoding="utf-8"))
    about = {
        "what": __doc__.splitlines()[0],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "configurations": {run["name"]: run["plan"]["config"]["label"] for run in runs},
    }
    lines = ",\n".join(json.dumps(run) for run in found)
    path.write_text(f'{json.dumps(about, indent=1)[:-2]},\n "runs": [\n{lines}\n]}}\n', encoding="utf-8")


def table(found: list[dict[str, Any]]) -> list[str]:
    """Returns the median over the processes of the ratio to cuBLAS, with the lowest and the highest."""
    lines = []
    for shape, kind in dict.fromkeys((tuple(run["shape"]), run["inputs"]) for run in found):
        runs = [run for run in found if tuple(run["shape"]) == shape and run["inputs"] == kind]
        flops = 2 * shape[0] * shape[1] * shape[2]
        for name in runs[0]["seconds"]:
            each = sorted(ratios(run["seconds"])[name] for run in runs)
            tflops = flops / statistics.median(t for run in runs for t in run["seconds"][name][ROUNDS // 4 :]) / 1e12
            clock, power = runs[0]["sm_clock_mhz_and_power_w"]
            lines.append(
                f"{'x'.join(map(str, shape)):18} {kind:9} {clock} MHz {power} W {tflops:6.1f} TFLOPS "
                f"{statistics.median(each):.4f} [{each[0]:.4f}, {each[-1]:.4f}] {name}"
            )
    return lines


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--inputs", type=click.Choice(INPUTS), default="normal", show_default=True)
def once(folder: Path, inputs: str) -> None:
    """Launch cuBLAS and every kernel twice, for a profiler."""
    import torch

    for kernels in load(folder).values():
        [tensors] = draw_sets(inputs, kernels[0].run, 1)
        for launch in (cublas(kernels[0].run, tensors), *(kernel.prepare(tensors) for kernel in kernels)):
            for _ in range(2):
                launch()
                torch.cuda.synchronize()


def entry() -> None:
    """Runs a command. Reports an error that the user can cause in one line."""
    try:
        main()
    except ReportedError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    entry()
