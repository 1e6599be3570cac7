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
