"""Compiles kernel configurations without the harness, and runs them on the emulated GPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

import ml_dtypes
import numpy as np

from harness.emulator import Counters, Device, Module, TensorMap
from harness.paths import ROOT
from harness.toolchain import require_mojo

ELEMENTS = {"bf16": ("bf16", np.dtype(ml_dtypes.bfloat16)), "fp16": ("f16", np.dtype(np.float16))}


def compile_driver(folder: Path, configs: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Builds folder/driver, which holds the kernels of these GemmConfig arguments."""
    source = folder / "driver.mojo"
    items = "".join(f"        GemmConfig({config}),\n" for config in configs)
    source.write_text(
        "from kernels.common.config import GemmConfig\nfrom kernels.emit import emit_main\n\n\n"
        f"def main():\n    emit_main[\n{items}    ]()\n"
    )
    command = [str(require_mojo()), "build", "-I", str(ROOT), str(source), "-o", str(folder / "driver")]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def ask(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [str(argument) for argument in arguments]
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60)


def run(
    driver: Path, index: int, m: int, n: int, k: int, schedule: str = "fifo", seed: int = 0
) -> tuple[np.ndarray, np.ndarray, Counters]:
    """Result and expected result on small random integers, exact in any order of summation."""
    plan = json.loads(ask(driver, "plan", index, m, n, k).stdout)
    element, dtype = ELEMENTS[plan["config"]["dtype"]]
    random = np.random.default_rng(seed)
    a, b = (random.integers(-3, 4, (rows, k)).astype(np.float32) for rows in (m, n))
    device = Device(schedule=schedule, seed=seed)
    tensors = {
        "A": device.upload(a.astype(dtype)),
        "B": device.upload(b.astype(dtype)),
        "C": device.upload(np.full((m, n), np.nan, dtype)),
    }
    arguments = [
        argument["value"]
        if argument["kind"] == "scalar"
        else TensorMap.tiled(
            tensors[argument["tensor"]],
            element,
            shape=tuple(reversed(argument["dims"])),
            box=tuple(reversed(argument["box"])),
            swizzle=argument["swizzle"],
        )
        for argument in plan["arguments"]
    ]
    result = device.launch(
        Module.from_text(ask(driver, "ptx", index).stdout),
        grid=tuple(plan["grid"]),
        cluster=tuple(plan["cluster"]),
        block=tuple(plan["block"]),
        dynamic_smem=plan["dynamic_smem"],
        arguments=arguments,
    )
    got = device.download(tensors["C"], str(dtype), (m, n)).astype(np.float32)
    return got, (a @ b.T).astype(dtype).astype(np.float32), result.counters
