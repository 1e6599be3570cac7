"""Replaces a kernel's compiled PTX by PTX edited by hand. The same plan launches it with the same arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emugpu.emulator.ptx.sections import kernel_sections
from emugpu.errors import UsageProblem
from harness.compile.artifacts import Artifact
from harness.problem import Shape

_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.M)


def put_in_place(path: Path, text: str, artifacts: Sequence[Artifact], shape: Shape) -> dict[int, Artifact]:
    """Returns the artifacts whose kernel is in the file, with its PTX, by position.

    ``text`` is the content of the file, which is read before anything is built. Raises UsageProblem if the file has
    none of the kernels.
    """
    declared = _TARGET.search(text)
    target = declared[1] if declared else ""
    kernels = [section.name for section in kernel_sections(text)]
    found = {}
    entries = []
    for position, artifact in enumerate(artifacts):
        entry = artifact.plan(shape).entry
        entries.append(str(entry))
        if entry in kernels:
            if target != artifact.config.arch:
                raise UsageProblem(
                    f"--ptx {path}: its target is {target}, the kernel's {artifact.config.arch}; add -c arch={target}"
                )
            found[position] = replace(artifact, edited=path, edited_ptx=text)
    if not found:
        raise UsageProblem(
            f"--ptx {path}: it has {', '.join(kernels) or 'no kernel'}, and the plan launches "
            f"{', '.join(entries)}; edit the output of harness build --emit ptx, and use the same options"
        )
    return found
