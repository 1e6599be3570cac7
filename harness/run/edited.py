"""A kernel's PTX edited by hand, in place of the compiled one: launched by the same plan, with the same arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.build.artifacts import Artifact
from harness.emulator.ptx.sections import kernel_sections
from harness.errors import UsageProblem
from harness.launch.spec import read_ptx
from harness.problem import Shape

_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.M)


@dataclass(frozen=True)
class EditedPtx:
    """A PTX file as it was read. kernels: their names."""

    path: Path
    text: str
    target: str
    kernels: tuple[str, ...]


def read_edited(path: Path) -> EditedPtx:
    """Reads the file once, before anything is built. Raises UsageProblem if it is no PTX."""
    text = read_ptx(path)
    target = _TARGET.search(text)
    kernels = tuple(section.name for section in kernel_sections(text))
    return EditedPtx(path, text, target[1] if target else "", kernels)


def put_in_place(edited: EditedPtx, artifacts: Sequence[Artifact], shape: Shape) -> dict[int, Artifact]:
    """By position: the artifacts whose kernel the file holds, with its PTX. Raises UsageProblem if there is none."""
    found = {}
    entries = []
    for position, artifact in enumerate(artifacts):
        entry = artifact.plan(shape).entry
        entries.append(str(entry))
        if entry in edited.kernels:
            if edited.target != artifact.config.arch:
                raise UsageProblem(
                    f"--ptx {edited.path}: its target is {edited.target}, the kernel's {artifact.config.arch}; "
                    f"add --arch {edited.target}"
                )
            found[position] = replace(artifact, edited=edited.path, edited_ptx=edited.text)
    if not found:
        raise UsageProblem(
            f"--ptx {edited.path}: it has {', '.join(edited.kernels) or 'no kernel'}, and the plan launches "
            f"{', '.join(entries)}; edit what harness build --emit ptx writes, and give the same options"
        )
    return found
