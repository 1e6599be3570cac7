"""Writes the output of ``harness build --emit``: PTX, machine code, the launch plan, or figures about the code."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from emugpu.emulator.ptx.parser import parse_module
from emugpu.errors import CannotRun
from harness.compile.artifacts import Artifact
from harness.compile.compiler import disassemble
from harness.problem import Shape

# An instruction in the output of nvdisasm:  /*0120*/  @!P0 UTMALDG.2D [UR8], [UR4] ;
_SASS = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def emit(artifact: Artifact, what: str, shape: Shape) -> str:
    """Returns the text of one of `KINDS`. ``shape`` is for the plan."""
    return KINDS[what](artifact, shape)


def _ptx(artifact: Artifact, _: Shape) -> str:
    return artifact.ptx


def _sass(artifact: Artifact, _: Shape) -> str:
    return disassemble(artifact.ptx, artifact.config.arch)


def _plan(artifact: Artifact, shape: Shape) -> str:
    return _lines(json.loads(artifact.plan_json(shape)))


def _statistics(artifact: Artifact, _: Shape) -> str:
    """Returns static counts by opcode, in PTX and in machine code, and what ptxas reports."""
    try:
        sass: dict[str, Any] = _count(_SASS.findall(disassemble(artifact.ptx, artifact.config.arch)))
    except CannotRun as error:
        sass = {"error": str(error)}
    [kernel] = parse_module(artifact.ptx).kernels.values()
    found = {
        "config": artifact.config.as_dict(),
        "ptxas": artifact.statistics(),
        "ptx": _count(".".join((i.opcode, *i.modifiers)) for i in kernel.instructions),
        "sass": sass,
    }
    return _lines(found)


def _count(names: Iterable[str]) -> dict[str, Any]:
    counted = Counter(names)
    return {"instructions": counted.total(), "by_opcode": dict(counted.most_common())}


def _lines(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"


KINDS: dict[str, Callable[[Artifact, Shape], str]] = {
    "ptx": _ptx,
    "sass": _sass,
    "plan": _plan,
    "asm-stats": _statistics,
}
