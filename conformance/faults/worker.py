"""Launches one program many times on a GPU, and prints as JSON what became of it.

    python -m conformance.faults.worker ID LAUNCHES SECONDS

Each launch has inputs of its own, so that what the one before has left in memory is wrong for it. A launch that takes
more than so many seconds is a hang, which ends the process, and so does an error of the GPU.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from conformance.faults.programs import launchable, streams
from emugpu.cuda.driver import DEFAULT_STREAM, Driver
from emugpu.cuda.launch import LoadedLaunchable
from emugpu.errors import ReportedError
from emugpu.launch.memory import LaunchMemory, make_values

LOOK = 0.2
"""Seconds between two looks at the time."""


def measure(id: str, launches: int, seconds: float) -> dict[str, Any]:
    """Returns how many launches ended, how many of these gave a wrong result, and the first wrong element.

    "error" says that the GPU or its driver refused to go on. If a launch does not end, this prints what was found until
    then, with "hung", and ends the process.
    """
    found: dict[str, Any] = {"launches": 0, "wrong": 0}
    try:
        driver = Driver()
        loaded = LoadedLaunchable(launchable(id), driver)
        numbered = {number: driver.new_stream() if number else DEFAULT_STREAM for number in streams(id)}
        watch = _Watch(seconds, found)
        for number in range(launches):
            _fill(loaded.memory, number)
            driver.synchronize()  # a copy to the GPU may return early, and not all streams wait for it
            with watch:
                for launch, stream in zip(loaded.launchers, streams(id), strict=True):
                    launch(numbered[stream])
                driver.synchronize()
            results = [result for result in loaded.memory.judge() if not result.passed]
            found["launches"] += 1
            found["wrong"] += bool(results)
            if results and "first" not in found:
                first = results[0].as_dict()
                found["first"] = {"launch": number, "elements": first["mismatches"], **first["first_mismatches"][0]}
    except ReportedError as error:
        return {**found, "error": str(error)}
    return found


class _Watch:
    """Ends the process if a ``with`` block takes more than so many seconds."""

    def __init__(self, seconds: float, found: dict[str, Any]) -> None:
        self._seconds, self._found = seconds, found
        self._end = math.inf
        threading.Thread(target=self._look, daemon=True).start()

    def __enter__(self) -> None:
        self._end = time.monotonic() + self._seconds

    def __exit__(self, *exception: object) -> None:
        self._end = math.inf

    def _look(self) -> None:
        while time.monotonic() < self._end:
            time.sleep(LOOK)
        print(json.dumps({**self._found, "hung": True}), flush=True)
        os._exit(0)  # the other thread waits for the GPU


def _fill(memory: LaunchMemory, launch: int) -> None:
    """Gives the buffers the first values of this launch."""
    placed = dict(memory.buffers)
    for number, (name, one) in enumerate(placed.items()):
        assert one.buffer.fill is not None
        values = make_values(replace(one.buffer.fill, seed=launch), one.buffer.dtype, one.shape, number)
        if values is not None:
            memory.device.write(one.address, one.buffer.dtype.to_memory(values))
            placed[name] = replace(one, first=values)
    memory.buffers = placed


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))), flush=True)
