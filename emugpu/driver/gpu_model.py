"""The GPUs that the emulated driver can show a program: gpus/*.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from emugpu.gpus import facts

FOLDER = Path(__file__).parent / "gpus"
DRIVER = "driver"
"""The file with what the emulated driver answers differently, whichever GPU it shows."""


def _read(name: str) -> dict[str, Any]:
    with (FOLDER / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


NUMBERS = {name: number for number, name in enumerate(_read("h200")["attributes"], 1)}
"""The numbers of device attributes (CUdevice_attribute) by their names: that GPU was asked for all, in their order."""


@dataclass(frozen=True)
class GpuModel:
    """What a program can ask of a GPU.

    Attributes:
        key: by which it is chosen: "b200".
        name: as cuDeviceGetName gives it.
        target: what its PTX is compiled for, sm_100a.
        memory_bytes: of the whole GPU.
        attributes: by their number in CUdevice_attribute.
        stack_bytes, printf_bytes, heap_bytes: limits of a new context.
    """

    key: str
    name: str
    target: str
    memory_bytes: int
    attributes: dict[int, int]
    stack_bytes: int
    printf_bytes: int
    heap_bytes: int

    def __getitem__(self, name: str) -> int:
        """An attribute by its name, a key of `NUMBERS`."""
        return self.attributes[NUMBERS[name]]

    @property
    def capability(self) -> tuple[int, int]:
        return self["compute_capability_major"], self["compute_capability_minor"]


def gpu_names() -> list[str]:
    """Returns the keys of all models."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != DRIVER)


@cache
def gpu_model(key: str) -> GpuModel:
    """Returns a model by its key, in any case. ValueError if there is none."""
    name = key.lower()
    if name not in gpu_names():
        raise ValueError(f"GPU '{key}': must be one of {', '.join(gpu_names())}")
    table = _table(name)
    known = facts(name)
    attributes = {**table.pop("attributes"), "multiprocessor_count": known.sms, **_read(DRIVER)["attributes"]}
    unknown = sorted(set(attributes) - set(NUMBERS))
    if unknown:
        raise ValueError(f"{name}.toml: {', '.join(unknown)}: no device attribute has this name")
    return GpuModel(
        key=name, target=known.arch, attributes={NUMBERS[a]: value for a, value in attributes.items()}, **table
    )


def _table(name: str) -> dict[str, Any]:
    """Reads a file, on top of the one it is like."""
    table = _read(name)
    like = table.pop("like", None)
    if like is None:
        return table
    base = _table(like)
    return {**base, **table, "attributes": {**base["attributes"], **table["attributes"]}}
