"""Pieces of work for the tests of engines; workers import them by this name."""

from __future__ import annotations

import os
import time
from pathlib import Path


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
