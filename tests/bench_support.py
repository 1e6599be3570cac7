"""Made-up records and times for the tests of the benchmark and the report."""

from __future__ import annotations

from typing import Any

import numpy as np

H200 = {"kind": "nvidia-h200", "name": "NVIDIA H200", "driver": "570.1"}
EMULATED = {"kind": "emulated-sm_100a", "name": "emulated sm_100a"}
CASE = "kernel6 bf16 2x1 512x512x512 index"


def noisy(seconds: float, seed: int, count: int = 30, spread: float = 0.01) -> list[float]:
    """Times as a GPU gives them: scattered around a value, and now and then far above it."""
    generator = np.random.default_rng(seed)
    times = seconds * np.exp(generator.normal(0, spread, count))
    late = generator.random(count) < 0.05
    return list(np.where(late, times * 1.3, times))


def timing(samples: list[float], vendor: list[float] | None = None) -> dict[str, Any]:
    middle = float(np.median(samples))
    others = {"cublas": {"seconds": float(np.median(vendor)), "tflops": 2.0, "samples": vendor}} if vendor else {}
    return {"seconds": middle, "tflops": 1e-12 / middle, "samples": samples, "vendor": others}


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
