"""The compiled planner, ``kernels/plan.mojo``: it alone knows the rules of a configuration and completes one.

It stays and answers a line of options with a line, in tens of microseconds.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.build.programs import ask, compile_program, is_compiled, with_notice
from harness.build.refusal import Refusal
from harness.errors import CannotRun, UsageProblem
from harness.problem.shape import Shape
from harness.processes.program import end, start

SOURCE = "from kernels.plan import plan_main\n\n\ndef main():\n    plan_main()\n"
PAIRS = {"mma_shape": ("mma_m", "mma_n"), "cluster": ("cluster_m", "cluster_n")}
"""What is one option here and two parameters there."""


def parameters(options: Mapping[str, Any]) -> dict[str, str | int | bool]:
    """Options by the names that the kernels give them; None is left out."""
    found: dict[str, str | int | bool] = {}
    for name, value in options.items():
        if value is not None:
            found |= dict(zip(PAIRS[name], value, strict=True)) if name in PAIRS else {name: value}
    return found


def planner() -> Path:
    """The program, from the cache or compiled now, which is said."""
    return with_notice("" if is_compiled(SOURCE) else "the planner (once)", lambda: compile_program(SOURCE))


def plan_json(options: Mapping[str, Any], shape: Shape) -> str:
    """The launch plan of a complete configuration: one line of JSON, with null for the entry's name."""
    return ask(planner(), shape.m, shape.n, shape.k, *_words(options))


def complete(options: Mapping[str, Any]) -> dict[str, Any]:
    """All choices of a configuration, by the names of the plan. Raises `Refusal` for one that breaks a rule."""
    words = _words(options)
    odd = next((word for word in words if not word.isprintable() or " " in word), None)
    if odd is not None:
        raise UsageProblem(f"{odd!r} is no value of a configuration's option: it has spaces")
    answer = json.loads(_answer(" ".join(words)))
    if "refused" in answer:
        refused = answer["refused"]
        raise Refusal(refused["message"], refused["subject"], tuple(filter(None, refused["instead"].split(","))))
    if "error" in answer:
        raise UsageProblem(answer["error"])
    return answer["config"]


def _words(options: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in parameters(options).items()
    ]


@functools.lru_cache(maxsize=4096)
def _answer(line: str) -> str:
    for _ in range(2):  # a planner that was ended, as by Ctrl-C in its terminal, is started again
        server = _server(os.getpid())
        found = server.ask(line)
        if found:
            return found
        _server.cache_clear()
    raise CannotRun(f"the planner {planner()} does not answer")


@functools.lru_cache(maxsize=1)
def _server(process: int) -> _Server:
    """One for each process: a child of `fork` must not talk to its parent's."""
    return _Server(planner())


class _Server:
    def __init__(self, program: Path) -> None:
        self._turn = threading.Lock()
        self._child = start([program, "configs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        atexit.register(end, self._child)

    def ask(self, line: str) -> str:
        """The answer; empty if there is none any more."""
        assert self._child.stdin and self._child.stdout
        with self._turn:
            try:
                self._child.stdin.write(f"{line}\n")
                self._child.stdin.flush()
            except (BrokenPipeError, ValueError):
                return ""
            return self._child.stdout.readline()
