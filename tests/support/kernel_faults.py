"""Kernels with a fault planted in their PTX.

Every alteration asserts that it changed the text it aims at, so that a new compiler cannot turn a test into a no-op.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kernel_runs import run

from emugpu.errors import CannotRun
from harness import paths
from harness.compile.artifacts import Artifact

Alteration = Callable[[str], str]


def outcome(artifact: Artifact, alter: Alteration, size: tuple[int, int, int], schedule: str, seed: int = 0) -> str:
    """What becomes of the altered kernel: "right", "wrong", or the report that stopped it."""
    try:
        _, validation = run(artifact, size, "index", ptx=alter(artifact.ptx), schedule=schedule, seed=seed)
    except CannotRun as error:
        return str(error)
    return "right" if validation.passed else "wrong"


def parameter(name: str, entry: str = "gemm") -> str:
    """The end of a parameter's name in PTX, where it has a number: its place in the entry point."""
    source = (paths.ROOT / "kernels" / "entry.mojo").read_text()
    [signature] = re.findall(rf"^def {entry}\[\n.*?\]\(\n(.*?)^\):", source, re.M | re.S)
    names = re.findall(r"^ *(\w+):", signature, re.M)
    return f"_param_{names.index(name)}"


def substitute(pattern: str, replacement: str | Callable[[re.Match[str]], str], count: int = 1) -> Alteration:
    """Replaces the first occurrences of a pattern; count 0: all of them."""

    def alter(ptx: str) -> str:
        altered, done = re.subn(pattern, replacement, ptx, count=count)
        assert done and altered != ptx, f"nothing to alter: {pattern}"
        return altered

    return alter


# ---- waits at mbarriers ----

WAIT = r"(mbarrier\.try_wait\.parity[.a-z]*\.shared::cta\.b64) (%p\d+), (\[[^]]*\]), ([^;]*);"


def drop_wait(nth: int):
    """The nth mbarrier wait (in program order) always succeeds at once."""

    def alter(ptx: str) -> str:
        wait = list(re.finditer(WAIT, ptx))[nth]
        return ptx[: wait.start()] + f"setp.eq.u32 {wait.group(2)}, 0, 0;" + ptx[wait.end() :]

    return alter


def flip_wait(nth: int):
    """The nth mbarrier wait asks for the other parity."""

    def alter(ptx: str) -> str:
        wait = list(re.finditer(WAIT, ptx))[nth]
        instruction, done, barrier, parity = wait.groups()
        flipped = f"{{ .reg .b32 other; xor.b32 other, {parity}, 1; {instruction} {done}, {barrier}, other; }}"
        return ptx[: wait.start()] + flipped + ptx[wait.end() :]

    return alter


def waits_in(ptx: str) -> int:
    return len(re.findall(r"mbarrier\.try_wait", ptx))


def unseen_waits(artifact, alter, sizes, seeds: int) -> set[int]:
    """Those, in program order, without which everything is right: on problems of all sizes, in all orders of events."""
    return {
        nth
        for nth in range(waits_in(artifact.ptx))
        if all(
            outcome(artifact, alter(nth), size, "random", seed) == "right" for size in sizes for seed in range(seeds)
        )
    }
