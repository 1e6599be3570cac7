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

from harness import cache
from harness.build.mojo_source import PLANNER, parameters, planner_source_with
from harness.build.programs import ask, compiled, key_of, with_notice
from harness.build.refusal import Refusal
from harness.errors import CannotRun, UsageProblem
from harness.problem.shape import Shape
from harness.processes.program import end, start


def planner(needed: Mapping[str, Any] | None = None) -> Path:
    """The program, from the cache or compiled now, which is said.

    needed: options of a kernel that is likely to be built next. It is then compiled in the same go, as more than half
    of what a compilation takes is spent on Mojo's standard library: see `compiled_with_planner`.
    """
    place = cache.place("programs", key_of(PLANNER)) / "program"
    if not cache.is_whole(place):
        also = f" and {needed['kernel']}" if needed else ""
        with_notice(f"the planner (once){also}", lambda: _compile(place, needed))
    return place


_compiled_with_planner: dict[str, str] = {}
"""PTX of the kernel that this process compiled together with the planner, by what was asked for."""


def compiled_with_planner(options: Mapping[str, Any]) -> str | None:
    """The PTX of a complete configuration, if it is what came of that which was compiled with the planner."""
    wanted = _line(options)
    return next((ptx for asked, ptx in _compiled_with_planner.items() if _answer(asked) == _answer(wanted)), None)


def _compile(place: Path, needed: Mapping[str, Any] | None) -> None:
    if needed:
        try:
            with compiled(planner_source_with(needed)) as program:
                _compiled_with_planner[_line(needed)] = ask(program, "ptx", 0)
                return _publish(program, place)
        except CannotRun:
            pass  # the kernel breaks a rule, about which the planner knows more to say than the compiler
    with compiled(PLANNER) as program:
        _publish(program, place)


def _publish(program: Path, place: Path) -> None:
    cache.publish(program.parent, place.parent, lambda: cache.is_whole(place))


def plan_json(options: Mapping[str, Any], shape: Shape) -> str:
    """The launch plan of a complete configuration: one line of JSON, with null for the entry's name."""
    return ask_plan(planner(), options, shape)


def ask_plan(program: Path, options: Mapping[str, Any], shape: Shape) -> str:
    """As `plan_json`, of a planner that may be another commit's."""
    return ask(program, shape.m, shape.n, shape.k, *_words(options))


def complete(options: Mapping[str, Any]) -> dict[str, Any]:
    """All choices of a configuration, by the names of the plan. Raises `Refusal` for one that breaks a rule."""
    words = _words(options)
    odd = next((word for word in words if not word.isprintable() or " " in word), None)
    if odd is not None:
        raise UsageProblem(f"{odd!r} is no value of a configuration's option: it has spaces")
    if not _server.cache_info().currsize:
        planner(needed=options)
    answer = json.loads(_answer(_line(options)))
    if "refused" in answer:
        refused = answer["refused"]
        raise Refusal(refused["message"], refused["subject"], tuple(filter(None, refused["instead"].split(","))))
    if "error" in answer:
        raise UsageProblem(answer["error"])
    return answer["config"]


def _line(options: Mapping[str, Any]) -> str:
    return " ".join(_words(options))


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
