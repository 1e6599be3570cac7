"""Probes as files that `metrology.probes.bare` runs on a machine with a GPU, and its results as a recording.

FOLDER/bare.py                          the program, which needs nothing else of this package
FOLDER/NAME/probe.ptx, inputs.npz       a probe's module, and its buffers as "CASE NUMBER/NAME"
FOLDER/NAME/launches.json               {"entry", "targets", "cases": [{"arguments", "buffers", "outputs", "grid", ..}]}
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import CannotRun
from metrology.probes import bare
from metrology.probes.probe import Argument, Case, Map, Outputs, Pointer, Probe, Struct, offsets

ANY_ADDRESS = 1 << 20
"""Stands for a buffer's address, which is known on the GPU only; maps want one that is aligned and not null."""
EMULATED_SWIZZLES = ("none", "32B", "64B", "128B")
"""Maps with others can be asked about all the same."""


def write(folder: Path, probes: Iterable[Probe]) -> None:
    """Write the probes and the program that runs them."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(bare.__file__, folder / "bare.py")
    for probe in probes:
        write_probe(folder / probe.name, probe)


def write_probe(folder: Path, probe: Probe) -> None:
    """Write one probe."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "probe.ptx").write_text(probe.ptx, encoding="utf-8")
    buffers = {f"{n}/{name}": data for n, case in enumerate(probe.cases) for name, data in case.buffers.items()}
    np.savez_compressed(folder / "inputs.npz", **buffers)  # type: ignore[arg-type]
    description = {"entry": probe.entry, "targets": probe.targets, "cases": [_case(case) for case in probe.cases]}
    (folder / "launches.json").write_text(json.dumps(description), encoding="utf-8")


@dataclass(frozen=True)
class Answered:
    """What a GPU answered. failed: what it said of cases that have no outputs, by name."""

    outputs: Outputs
    failed: dict[str, str]


def read(path: Path, probe: Probe) -> Answered:
    """What `bare` wrote for a probe. Raises CannotRun if it wrote an error, or nothing."""
    error = path.with_suffix(".error")
    if error.exists():
        raise CannotRun(error.read_text(encoding="utf-8").strip())
    if not path.exists():
        raise CannotRun(f"{path} is missing: the probe was not run")
    cases = path.with_suffix(".cases")
    failed = {int(n): said for n, said in json.loads(cases.read_text()).items()} if cases.exists() else {}
    return answered(path, probe, failed)


def answered(path: Path, probe: Probe, failed: dict[int, str]) -> Answered:
    """The outputs in a file, but for cases that failed."""
    with np.load(path) as found:
        outputs = {
            case.name: {name: found[f"{number}/{name}"] for name in case.outputs}
            for number, case in enumerate(probe.cases)
            if number not in failed
        }
    return Answered(outputs, {probe.cases[number].name: said for number, said in failed.items()})


def _case(case: Case) -> dict[str, Any]:
    return {
        "arguments": [_pieces(argument, 0) for argument in case.arguments],
        "buffers": list(case.buffers),
        "outputs": list(case.outputs),
        "grid": _three(case.grid),
        "cluster": _three(case.cluster),
        "block": _three(case.block if isinstance(case.block, tuple) else (case.block,)),
        "shared": case.shared,
    }


def _three(sizes: tuple[int, ...]) -> list[int]:
    return [*sizes, *([1] * (3 - len(sizes)))]


def _pieces(argument: Argument, at: int) -> list[dict[str, Any]]:
    """What an argument consists of, each piece with its offset."""
    if isinstance(argument, Struct):
        places = offsets(argument)
        return [piece for field, place in zip(argument.fields, places, strict=True) for piece in _pieces(field, place)]
    if isinstance(argument, Pointer):
        return [{"at": at, "pointer": argument.buffer}]
    if isinstance(argument, Map):
        known = argument.swizzle in EMULATED_SWIZZLES
        tensor_map = (argument if known else replace(argument, swizzle="none")).at(ANY_ADDRESS)
        fields = {
            "element": tensor_map.element.name,
            "dims": list(tensor_map.dims),
            "strides": list(tensor_map.strides),
            "box": list(tensor_map.box),
            "steps": list(tensor_map.steps),
            "swizzle": argument.swizzle,
            "fill_nan": tensor_map.fill_nan,
        }
        return [{"at": at, "map": fields, "buffer": argument.buffer}]
    return [{"at": at, "bytes": argument.tobytes().hex()}]
