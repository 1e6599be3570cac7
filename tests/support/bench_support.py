"""Made-up records and times for the tests of the benchmark and the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.problem import Shape
from harness.run.measure import describe

H200 = {"kind": "nvidia-h200", "name": "NVIDIA H200", "driver": "570.1"}
EMULATED = {"kind": "emulated-sm_100a", "name": "emulated sm_100a"}
CASE = "kernel6 bf16 2x1 512x512x512 index"


def noisy(seconds: float, seed: int, count: int = 30, spread: float = 0.01) -> list[float]:
    """Times as a GPU gives them: scattered around a value, and now and then far above it."""
    generator = np.random.default_rng(seed)
    times = seconds * np.exp(generator.normal(0, spread, count))
    late = generator.random(count) < 0.05
    return list(np.where(late, times * 1.3, times))


def timing(
    seconds: float, seed: int = 0, *, processes: int = 5, between: float = 0.002, vendor: float | None = None
) -> dict[str, Any]:
    """The timing part of a record as a GPU gives it. between: how much processes differ, as a standard deviation of the
    logarithm. In a process kernel and vendor share most of it, as they do clocks and temperature.
    """
    generator = np.random.default_rng(seed)
    runs = []
    for number in range(processes):
        shared = np.exp(generator.normal(0, between))
        own = {"kernel": seconds} | ({"cublas": vendor} if vendor else {})
        middles = {name: value * shared * np.exp(generator.normal(0, between / 4)) for name, value in own.items()}
        runs.append({name: noisy(middle, 100 * seed + number, spread=0.004) for name, middle in middles.items()})
    return describe(runs, Shape(1000, 1000, 504))


def bench_record(
    run: str = "1",
    case: str = CASE,
    *,
    device: dict[str, Any] = EMULATED,
    commit: str = "a" * 40,
    dirty: bool = False,
    passed: bool = True,
    **fields: Any,
) -> dict[str, Any]:
    """A record as the benchmark writes it."""
    return {
        "schema": 1,
        "time": f"2026-01-0{run[-1]}T00:00:00+00:00",
        "git": {"commit": commit, "dirty": dirty},
        "kernel": case.split()[0],
        "config": {"arch": "sm_100a", "dtype": "bf16", "cluster": [2, 1], "stages": 5},
        "problem": {"m": 512, "n": 512, "k": 512},
        "inputs": {"kind": "index", "seed": 0},
        "toolchain": {"mojo": "1.2.0", "max": "26.7.0", "ptxas": "13.0"},
        "device": device,
        "validation": {"passed": passed, "mismatches": 0 if passed else 7, "elements": 512 * 512},
        "counters": {
            "instructions": {"alu": 100, "tma": 4},
            "tma_global_bytes_read": 4096,
            "tmem_columns": 256,
        },
        "timing": {"seconds": None, "reason": "not measured: emulated"},
        "ptx": {"sha256": "0", "ptxas": {"registers": 64, "version": "13.0"}},
        "facts": {"ptx_instructions": {"add.s32": 10, "ret": 1}, "stages": 5, "dynamic_shared_bytes": 1000},
        "bench": {"run": run, "suite": "small", "case": case, "fingerprint": "f"},
        **fields,
    }


def series_records() -> list[dict[str, Any]]:
    """A history as two runs at two commits give it: three kernels, emulated by cluster, and timed on an H200."""
    made = []
    for run, commit, extra in (("1", "a" * 40, 100), ("2", "b" * 40, 0)):
        for number, kernel in enumerate(("kernel5", "kernel6", "kernel7")):
            for cluster in ((2, 1), (2, 2), (4, 4)):
                made.append(_emulated(run, commit, kernel, number, cluster, extra))
            seconds = 2 * 4096**3 / (300e12 + 200e12 * number)
            times = timing(seconds, number, vendor=2 * 4096**3 / 720e12)
            times["tflops"] = 2 * 4096**3 / times["seconds"] / 1e12
            times["vendor"]["cublas"].update(tflops=720.0, ratio=0.5)
            made.append(
                bench_record(
                    run,
                    f"{kernel} bf16 2x1 4096x4096x4096 normal",
                    device=H200,
                    commit=commit,
                    config={**_config((2, 1)), "arch": "sm_90a", "cta_group": 1, "mma_shape": [128, 256, 16]},
                    problem={"m": 4096, "n": 4096, "k": 4096},
                    counters={},
                    timing=times,
                )
            )
    return made


def _config(cluster: tuple[int, int]) -> dict[str, Any]:
    shape = {"mma_shape": [256, 256, 16], "cta_group": 2, "block_k": 64, "stages": 5}
    return {"arch": "sm_100a", "dtype": "bf16", "cluster": list(cluster), "multicast": True, **shape}


def _emulated(run, commit, kernel, number, cluster, extra) -> dict[str, Any]:
    cm, cn = cluster
    read = {"A": (4 << 20) // cn, "B": (4 << 20) * 2 // cm}
    counters = {
        "instructions": {"alu": 1000 * (number + 1) + extra, "tma": 40},
        "tma_global_bytes_read": sum(read.values()),
        "tma_global_bytes_read_by_tensor": read,
        "tma_box_bytes": sum(read.values()),
        "tma_shared_bytes_written": 8 << 20,
        "tma_global_bytes_written": 2 << 20,
        "max_stores_in_flight": 1 + number // 2,
        "mbarrier_waits": 500 + 100 * number,
        "mbarrier_stalls": 480,
    }
    facts = bench_record()["facts"]
    shared = {"A stages": 81920, "B stages": 81920, "C tile": 65536 >> number}
    return bench_record(
        run,
        f"{kernel} bf16 {cm}x{cn} 1024x1024x512 index",
        commit=commit,
        config=_config(cluster),
        problem={"m": 1024, "n": 1024, "k": 512},
        counters=counters,
        facts={**facts, "stages": 1 + 2 * number, "shared_memory": shared},
    )
