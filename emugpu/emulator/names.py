"""Names in PTX: demangling, look-up by a part of a name, and short forms of names and instructions for messages."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import lru_cache

from emugpu.emulator.errors import LaunchError

DEMANGLE_SECONDS = 10
SHOWN = 8
LONGEST = 72
"""The most characters of a name in a message."""
FEW = 8
"""Up to this many registers of a vector are all shown."""


def find_name(wanted: str, names: Iterable[str], what: str) -> str:
    """Returns the one of ``names`` that is meant: by its name, its demangled form, or a part that no other one has.

    If several have the part, as instances of one template do, ``part#2`` is the second. ``what``: the kind of name, for
    messages ("kernel", "variable"). Raises LaunchError if no name fits, or several do.
    """
    names = list(names)
    if wanted in names:
        return wanted
    part, _, number = wanted.rpartition("#")
    chosen = int(number) if part and number.isdigit() else 0
    wanted = part if chosen else wanted
    readable = dict(zip(names, demangle(tuple(names)), strict=True))
    tests = (
        lambda name: wanted in (readable[name], base_name(readable[name])),
        lambda name: base_name(readable[name]).rpartition("::")[2] == wanted,
        lambda name: wanted[-1].isdigit() and name.endswith(wanted),  # param_1 is not param_10
        lambda name: wanted in name or wanted in readable[name],
    )
    for test in tests if wanted else ():
        found = [name for name in names if test(name)]
        if 0 < chosen <= len(found):
            return found[chosen - 1]
        if len(found) == 1 and not chosen:
            return found[0]
        if found:
            several = f"{what} '{wanted}' is not clear: it may be {listed(found)}"
            raise LaunchError(f"{several}; write more of the name, or one of {wanted}#1 to {wanted}#{len(found)}")
    raise LaunchError(f"no {what} '{wanted}' in the module; it has {listed(names) or 'none'}")


def demangle(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns C++ names as in the source, if c++filt is installed. Other names are unchanged."""
    return _demangled(names) if any(name.startswith("_Z") for name in names) else names


def readable_name(name: str) -> str:
    """Returns one name, demangled."""
    return demangle((name,))[0]


def short_name(name: str) -> str:
    """Returns a name for messages: demangled, and without return type, parameters and ABI tags.

    The middle of a long name is replaced by "..". The name may be demangled already.
    """
    text = re.sub(r"\[abi:\w+\]", "", readable_name(name))
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += (text[position] == ")") - (text[position] == "(")
        if text[position] == "(" and not depth:
            text = text[:position] if position else text
            break
    text = re.sub(r"^(void|auto) ", "", " ".join(text.split()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}..{text[-LONGEST // 3 :]}"


def brief(text: str) -> str:
    """Returns an instruction with only the first registers of each long vector: {%r1, %r2, .. 60 more}."""

    def shortened(match: re.Match[str]) -> str:
        items = match[1].split(",")
        if len(items) <= FEW:
            return match[0]
        return "{" + ", ".join(item.strip() for item in items[:2]) + f", .. {len(items) - 2} more}}"

    return re.sub(r"\{([^{}]*)\}", shortened, text)


def base_name(demangled: str) -> str:
    """Returns ``lab::gemm`` for ``void lab::gemm<float>(float*)``: no return type, template arguments, parameters."""
    depth, kept = 0, []
    for character in demangled.replace("(anonymous namespace)", "{anonymous}"):
        depth += character in "<("
        if not depth:
            kept.append(character)
        depth -= character in ">)"
    words = "".join(kept).split()
    return words[-1] if words else demangled


@lru_cache(maxsize=64)
def _demangled(names: tuple[str, ...]) -> tuple[str, ...]:
    program = shutil.which("c++filt") or shutil.which("cu++filt")
    if program is None:
        return names
    try:
        done = subprocess.run(
            [program], input="\n".join(names), capture_output=True, text=True, timeout=DEMANGLE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return names
    lines = done.stdout.splitlines()
    return tuple(lines) if done.returncode == 0 and len(lines) == len(names) else names


def listed(names: list[str]) -> str:
    shown = [short_name(name) for name in names[:SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
