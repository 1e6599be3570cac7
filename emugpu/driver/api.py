"""The driver API as data: the functions and parameters of ``functions.txt``, and the handler of each function.

The files ``*_calls.py`` register their handlers with `handles`.
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
"""The prefix of the functions that only the library itself calls."""
OF_TENSORS = "emulatedTensor"
"""The prefix of those among them that `emugpu.pytorch` calls, too."""


@dataclass(frozen=True)
class ApiParameter:
    """A parameter of a function.

    ``type`` is the type of a scalar, or of the target of an output, as a key of `SCALARS`; else "". ``size`` is the
    number of bytes that the parameter points to, as a C expression. ``value`` is what a fixed output returns.
    """

    name: str
    kind: ParameterKind
    type: str = ""
    size: str = ""
    value: str = ""


@dataclass(frozen=True)
class ApiFunction:
    """A function of the API.

    ``name`` is the symbol, ``base`` the name without a version suffix. ``since`` is the driver version that introduced
    it. The library sends ``number`` to the server to name the function. ``copies``: the reply lists the copies that the
    library has to make. ``prints``: the reply includes the kernels' printed output.
    """

    name: str
    disposition: Disposition
    parameters: tuple[ApiParameter, ...]
    since: int
    number: int
    copies: bool
    prints: bool

    @property
    def base(self) -> str:
        return re.sub(r"_v\d+$", "", self.name)

    @property
    def is_asked(self) -> bool:
        """Returns whether the server handles the function."""
        return self.disposition in ("served", "anytime")


_LINE = re.compile(r"(served|anytime|fixed|native|refused) +(\w+)(?:@(\d+))?(?:\((.*)\))?( copies)?( prints)?")
_BETWEEN = re.compile(r", *(?![^\[]*\])")
"""A comma outside of brackets."""
_POINTER = re.compile(r"(in|out)\[(.+)\]")


@cache
def functions() -> tuple[ApiFunction, ...]:
    """Returns all functions in the order of the table."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return tuple(_function(line, number) for number, line in enumerate(lines))


def refused_of_runtime() -> list[str]:
    """Returns the names of the refused functions of the CUDA runtime API."""
    return [line for line in _RUNTIME.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def checksum() -> bytes:
    """Returns 8 bytes of the table's hash. Library and server must have the same."""
    return hashlib.sha256(TABLE.read_bytes()).digest()[:8]


def _function(line: str, number: int) -> ApiFunction:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"{TABLE.name}: cannot read {line!r}")
    disposition, name, since, parameters, copies, prints = match.groups()
    read = tuple(_parameter(text, line) for text in _BETWEEN.split(parameters or "") if text)
    return ApiFunction(name, disposition, read, int(since or 0), number, bool(copies), bool(prints))  # type: ignore[arg-type]


def _parameter(text: str, line: str) -> ApiParameter:
    declared, _, value = text.partition("=")
    kind, _, name = declared.strip().rpartition(" ")
    kind = kind.strip()
    if kind in SCALARS:
        return ApiParameter(name, "scalar", kind)
    if kind == "text" or kind == "image":
        return ApiParameter(name, kind)  # type: ignore[arg-type]
    if match := _POINTER.fullmatch(kind):
        return ApiParameter(name, match[1], size=match[2])  # type: ignore[arg-type]
    target = kind.removeprefix("out.")
    if kind.startswith("out.") and (target in SCALARS or target.isdigit()):
        size = str(SIZES[target]) if target in SIZES else target
        return ApiParameter(name, "out", target if target in SCALARS else "", size, value.strip())
    raise ValueError(f"{TABLE.name}: cannot read the parameter {text!r} of {line!r}")


# ---- handlers ----

Handler = TypeVar("Handler", bound=Callable[..., Any])
"""Takes the session and the call's inputs in order, and returns the outputs.

These are one output, a tuple of outputs, or a list of copies. Raises DriverError.
"""

HANDLERS: dict[str, Callable[..., Any]] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Registers the decorated function as the handler of these functions."""

    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return register
