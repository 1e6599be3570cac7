"""The GPU models that the emulated driver can present to a program: gpus/*.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from emugpu.gpus import facts

FOLDER = Path(__file__).parent / "gpus"
DRIVER = "driver"
"""The file with the attributes of the emulated driver, which override those of every GPU."""


def _read(name: str) -> dict[str, Any]:
    with (FOLDER / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


NUMBERS = {name: number for number, name in enumerate(_read("h200")["attributes"], 1)}
"""The numbers of device attributes (CUdevice_attribute) by name; the file of that GPU lists all of them in order."""


@dataclass(frozen=True)
class GpuModel:
    """What a program can query about a GPU.

    Attributes:
        key: the option value that selects it: "b200".
        name: the name that cuDeviceGetName returns.
        target: the target of its PTX: sm_100a.
        memory_bytes: the memory of the whole GPU.
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
        """Returns an attribute by its name, a key of `NUMBERS`."""
        return self.attributes[NUMBERS[name]]

    @property
    def capability(self) -> tuple[int, int]:
        return self["compute_capability_major"], self["compute_capability_minor"]


def gpu_names() -> list[str]:
    """Returns the keys of all models."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != DRIVER)


@cache
def gpu_model(key: str) -> GpuModel:
    """Returns a model by its key, in any case. Raises ValueError if there is none."""
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
    """Reads a file and adds the entries of the file that its ``like`` names."""
    table = _read(name)
    like = table.pop("like", None)
    if like is None:
        return table
    base = _table(like)
    return {**base, **table, "attributes": {**base["attributes"], **table["attributes"]}}
