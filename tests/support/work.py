"""Pieces of work for the tests of engines; workers import them by this name."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from emugpu.errors import CannotRun
from emugpu.processes.worker import send_event


def square(n: int) -> int:
    return n * n


def misbehave(n: int) -> int:
    """Its process dies of 3, 5 hangs, 6 raises."""
    if n == 3:
        print("about to die", flush=True)
        os._exit(7)
    if n == 5:
        time.sleep(100)
    if n == 6:
        raise ValueError("six")
    return n


def die_once(folder: str) -> str:
    """Its process dies the first time."""
    mark = Path(folder, "tried")
    if not mark.exists():
        mark.touch()
        os._exit(1)
    return "done"


def note(place: tuple[str, int]) -> int:
    """Leaves a line for each time it is done."""
    with open(place[0], "a", encoding="utf-8") as file:
        file.write(f"{place[1]}\n")
    return place[1]


def on_a_gpu(n: int) -> tuple[str | None, float, float]:
    """(which one it sees, when it began and ended)."""
    start = time.monotonic()
    time.sleep(0.05)
    return os.environ.get("CUDA_VISIBLE_DEVICES"), start, time.monotonic()


def count_slowly(n: int) -> int:
    """Takes longer than a second, and says each half of one how far it is."""
    for step in range(n):
        time.sleep(0.5)
        send_event(step)
    return n


def gpu_process(request: dict) -> None:
    """Behaves like the process that touches the GPU, as request says."""
    send_event(("started", {"name": request["name"]}))
    print("library noise")
    match request["then"]:
        case "finishes":
            send_event(("note", {"message": "hm"}))
            send_event(("finished", {"timing": None}))
        case "hangs":
            send_event(("checked", {"validation": {"passed": True}}))
            time.sleep(600)
        case "crashes":
            sys.stderr.write("CUDA error: an illegal memory access\n")
            sys.stderr.flush()
            os._exit(9)
        case "explains":
            raise CannotRun("needs sm_90a")
