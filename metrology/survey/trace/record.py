"""Runs kernels that write down their events on the GPU of this process, beside the same kernels as they are.

    python -m metrology.survey.trace.record PACKED FOLDER

Each leaves trace-NUMBER.json: what was run, whether the result is the same, seconds with and without the writing, what
the numbers of the events mean; and trace-NUMBER.npz: the events, see `harness.timing.measured`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from harness.run.driver import Driver
from metrology.survey.kernels import Operands, Packed
from metrology.survey.trace.instrument import Room, read_room

SEED = 7
BITS = np.array([0xBF80, 0, 0x3F80], np.uint16)
"""-1, 0, 1 in bf16: every sum of their products is exact."""
WARM_LAUNCHES = 3
TIMED_LAUNCHES = 20


class Recorder:
    """A GPU, packed kernels, and room for operands and events."""

    def __init__(self, packed: Packed) -> None:
        self.packed, self.driver = packed, packed.driver
        self.random = np.random.default_rng(SEED)

    def record(self, run: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What is to be known about the run, and its events."""
        problem, room = run["plan"]["problem"], Room(**run["trace"]["room"])
        m, n, k = problem["m"], problem["n"], problem["k"]
        operands = {"A": self._draw(m * k), "B": self._draw(n * k), "C": self.driver.allocate(2 * m * n)}
        address = self.driver.allocate(room.bytes)
        try:
            plain, plain_seconds = self._result(run, operands, m * n)
            traced = {**run, "code": run["trace"]["code"]}
            self.driver.fill(address, room.bytes)
            result, seconds = self._result(traced, operands, m * n, ctypes.c_uint64(address))
            self.driver.fill(address, room.bytes)
            self.packed.launch(traced, operands, ctypes.c_uint64(address))(0)
            self.driver.synchronize()
            events = read_room(self.driver.download(address, np.empty(room.bytes // 8, np.uint64)), room)
        finally:
            for each in (*operands.values(), address):
                self.driver.free(each)
        about = {
            "name": run["name"],
            "plan": run["plan"],
            "sites": run["trace"]["sites"],
            "room": run["trace"]["room"],
            "same_result": bool((plain == result).all()),
            "seconds": plain_seconds,
            "seconds_traced": seconds,
        }
        return about, events

    def _draw(self, count: int) -> int:
        address = self.driver.allocate(2 * count)
        self.driver.upload(address, BITS[self.random.integers(0, 3, count)])
        return address

    def _result(self, run: dict[str, Any], operands: Operands, count: int, *more: Any) -> tuple[np.ndarray, float]:
        """C, and the seconds of a launch in a row of them."""
        launch = self.packed.launch(run, operands, *more)
        self.driver.fill(operands["C"], 2 * count, 0xFF)
        for _ in range(WARM_LAUNCHES):
            launch(0)
        self.driver.synchronize()
        found = self.driver.download(operands["C"], np.empty(count, np.uint16))
        graph = self.driver.graph([launch] * TIMED_LAUNCHES)
        graph()
        return found, graph() / TIMED_LAUNCHES


def main(packed: str, folder: str) -> None:
    driver = Driver()
    kernels = Packed(Path(packed), driver)
    recorder = Recorder(kernels)
    for number, run in enumerate(run for run in kernels.runs if "trace" in run):
        about, events = recorder.record(run)
        np.savez_compressed(Path(folder, f"trace-{number}.npz"), **events)  # type: ignore[arg-type]
        Path(folder, f"trace-{number}.json").write_text(json.dumps(about), encoding="utf-8")
        slower = about["seconds_traced"] / about["seconds"] - 1
        same = "same result" if about["same_result"] else "ANOTHER RESULT"
        print(f"{run['name']}: {len(events['clock'])} events, {same}, {100 * slower:+.1f} % time", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
