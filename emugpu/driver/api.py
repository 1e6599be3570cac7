"""The driver API as data, what ``functions.txt`` says of every function and its parameters, and who answers which call.

The files ``*_calls.py`` register their functions with `handles`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

Disposition = Literal["served", "anytime", "fixed", "native", "refused"]
ParameterKind = Literal["scalar", "text", "in", "out", "image"]

TABLE = Path(__file__).parent / "functions.txt"
_RUNTIME = Path(__file__).parent / "runtime_refused.txt"
SCALARS = {"i32": "int32_t", "u32": "uint32_t", "u64": "uint64_t", "f32": "float"}
SIZES = {"i32": 4, "u32": 4, "u64": 8, "f32": 4}
OWN = "emulated"
"""How names of functions begin that only the library itself calls."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function.

    ``type``: of a scalar, or of what an output points to, a key of `SCALARS`; else "". ``size``: of what is pointed
    to in bytes, a C expression. ``value``: what a fixed output gets.
    """

    name: str
    kind: ParameterKind
    type: str = ""
    size: str = ""
    value: str = ""


@dataclass(frozen=True)
class Function:
    """A function of the API.

    ``name``: of the symbol. ``base``: without a version's suffix. ``since``: the driver version. ``number``: by
    which the library names it to the server. ``copies``: the answer says what the library is to copy. ``prints``:
    what kernels have printed comes with the answer.
    """

    name: str
    disposition: Disposition
    parameters: tuple[Parameter, ...]
    since: int
    number: int
    copies: bool
    prints: bool

    @property
    def base(self) -> str:
        return re.sub(r"_v\d+$", "", self.name)

    @property
    def is_asked(self) -> bool:
        """Returns whether the server answers it."""
        return self.disposition in ("served", "anytime")


_LINE = re.compile(r"(served|anytime|fixed|native|refused) +(\w+)(?:@(\d+))?(?:\((.*)\))?( copies)?( prints)?")
_BETWEEN = re.compile(r", *(?![^\[]*\])")
"""A comma that does not stand in brackets."""
_POINTER = re.compile(r"(in|out)\[(.+)\]")


@cache
def functions() -> tuple[Function, ...]:
    """Returns all functions in the order of the table."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return tuple(_function(line, number) for number, line in enumerate(lines))


def refused_of_runtime() -> list[str]:
    """Returns the names of functions of the CUDA runtime API that are refused."""
    return [line for line in _RUNTIME.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def checksum() -> bytes:
    """Returns 8 bytes of the table's hash: library and server must have the same."""
    return hashlib.sha256(TABLE.read_bytes()).digest()[:8]


def _function(line: str, number: int) -> Function:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"{TABLE.name}: cannot read {line!r}")
    disposition, name, since, parameters, copies, prints = match.groups()
    read = tuple(_parameter(text, line) for text in _BETWEEN.split(parameters or "") if text)
    return Function(name, disposition, read, int(since or 0), number, bool(copies), bool(prints))  # type: ignore[arg-type]


def _parameter(text: str, line: str) -> Parameter:
    declared, _, value = text.partition("=")
    kind, _, name = declared.strip().rpartition(" ")
    kind = kind.strip()
    if kind in SCALARS:
        return Parameter(name, "scalar", kind)
    if kind == "text" or kind == "image":
        return Parameter(name, kind)  # type: ignore[arg-type]
    if match := _POINTER.fullmatch(kind):
        return Parameter(name, match[1], size=match[2])  # type: ignore[arg-type]
    target = kind.removeprefix("out.")
    if kind.startswith("out.") and (target in SCALARS or target.isdigit()):
        size = str(SIZES[target]) if target in SIZES else target
        return Parameter(name, "out", target if target in SCALARS else "", size, value.strip())
    raise ValueError(f"{TABLE.name}: cannot read the parameter {text!r} of {line!r}")


# ---- who answers ----

Handler = TypeVar("Handler", bound=Callable[..., Any])
"""Takes the session and the call's inputs in their order. Returns one output, a tuple of outputs, or a list of copies;
raises DriverError."""

HANDLERS: dict[str, Callable[..., Any]] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """The decorated function answers the calls of these names."""

    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return register
