"""A probe: PTX, its launches, and the interpretation of its outputs."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance.ptx import HOPPER, for_target
from emugpu.emulator import Swizzle, TensorMap
from emugpu.emulator.units.operands import Accumulation
from emugpu.launch import spec
from emugpu.launch.spec import DATA_TYPES

MOST_ANSWER_BYTES = 64 << 20
"""Largest size of a decoded buffer; real ones have a few MiB at most."""
Outputs = dict[str, dict[str, np.ndarray]]
"""The contents of the output buffers after the launch, by case and buffer."""
ANY_ADDRESS = 1 << 20
"""A buffer's address for uses in which only the form of a tensor map matters."""
EMULATED_SWIZZLES = ("NONE", *(f"{each.span_bytes}B" for each in Swizzle if each is not Swizzle.B128_ATOM_32B))
Explain = Callable[[Outputs, Outputs], list[str]]
"""Takes the emulator's outputs and others, and returns a line for each difference."""


@dataclass(frozen=True)
class Pointer:
    """A kernel argument: the address of a buffer."""

    buffer: str


@dataclass(frozen=True)
class MapArgument:
    """A kernel argument: a tensor map over a packed row-major buffer [rows, columns], read as this element type.

    ``box`` is (rows, columns). The fields are those of `emugpu.emulator.TensorMap.tiled`.
    """

    buffer: str
    element: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str = "none"
    fill_nan: bool = False

    def at(self, address: int) -> TensorMap:
        """Returns the map for a buffer at this address."""
        return TensorMap.tiled(address, self.element, self.shape, self.box, self.swizzle, self.fill_nan)


@dataclass(frozen=True)
class StructArgument:
    """A kernel argument: a struct by value, with its fields in C's layout."""

    fields: tuple[Argument, ...]


BLACKWELL = ("sm_100a", "sm_103a")
Argument = Pointer | MapArgument | StructArgument | np.number[Any]


@dataclass(frozen=True)
class ProbeCase:
    """One launch. ``buffers``: their content before it. ``outputs``: the buffers to read back. ``shared``: dynamic
    bytes.

    ``kept`` says whether a recording keeps the outputs; those of a large case only serve the interpretation.
    """

    name: str
    buffers: dict[str, np.ndarray]
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...]
    block: int | tuple[int, ...]
    grid: tuple[int, ...] = (1, 1)
    cluster: tuple[int, ...] = (1, 1)
    shared: int = 0
    kept: bool = True


@dataclass(frozen=True)
class Probe:
    """A question to the machine. ``read`` turns the outputs into plain data (JSON).

    ``accumulation``: the emulator's mode of summation, if it matters. ``entry``: the kernel's name. ``exact``: whether
    the emulator gives the same bits; otherwise the result says how far each machine is from exact values. ``explain``:
    describes differences in the terms of the question. ``modelled``: whether the emulator models the behaviour;
    otherwise a GPU's results are only recorded. ``assumption``: the basis of the emulator's behaviour, if no hardware
    has confirmed it.
    """

    name: str
    question: str
    ptx: str
    cases: tuple[ProbeCase, ...]
    read: Callable[[Outputs], dict[str, Any]] = field(repr=False)
    accumulation: Accumulation = "f32"
    entry: str = "probe"
    exact: bool = True
    explain: Explain | None = field(default=None, repr=False)
    modelled: bool = True
    assumption: str = ""

    @property
    def target(self) -> str:
        """Returns the target of the PTX."""
        return next(line.split()[1].rstrip(",") for line in self.ptx.splitlines() if line.startswith(".target"))

    @property
    def targets(self) -> tuple[str, ...]:
        """Returns the possible targets. Only Hopper has wgmma, and only sm_100a has the integers of tcgen05.mma."""
        if self.target != HOPPER:
            return BLACKWELL[:1] if ".kind::i8" in self.ptx else BLACKWELL
        return (HOPPER,) if "wgmma" in self.ptx else (HOPPER, *BLACKWELL)

    def on(self, target: str) -> Probe:
        """Returns the probe for another GPU, one of `targets`."""
        return self if target == self.target else replace(self, ptx=for_target(self.ptx, target))

    @property
    def kept_cases(self) -> tuple[ProbeCase, ...]:
        return tuple(case for case in self.cases if case.kept)

    def launchable(self, case: ProbeCase) -> spec.Launchable:
        """Returns a case in the form that any device runs. Its buffers are bytes: `outputs_of` restores their types."""
        maps: dict[str, spec.Map] = {}
        arguments = tuple((f"argument {n}", _argument(each, maps)) for n, each in enumerate(case.arguments))
        block = case.block if isinstance(case.block, tuple) else (case.block,)
        launch = spec.Launch(self.entry, case.grid, case.cluster, block, case.shared, arguments)
        buffers = {name: _bytes(name, content) for name, content in case.buffers.items()}
        return spec.Launchable(Path(f"{self.name}.ptx"), buffers, maps, (launch,), text_given=self.ptx)

    def digest(self) -> str:
        """Returns a hash of the PTX, the inputs and the launches. A recording belongs to one digest."""
        parts = hashlib.sha256(self.ptx.encode())
        if self.entry != "probe":
            parts.update(self.entry.encode())
        for case in self.cases:
            arguments = [_plain(each) for each in case.arguments]
            shape = (case.name, arguments, case.outputs, case.block, case.grid, case.cluster, case.shared)
            parts.update(json.dumps(shape).encode())
            for name, content in case.buffers.items():
                parts.update(f"{name} {content.dtype.str} {content.shape}".encode())
                parts.update(np.ascontiguousarray(content).tobytes())
        return parts.hexdigest()


def _plain(argument: Argument) -> list[Any]:
    """Returns the argument as plain data (JSON), which does not depend on the names of classes."""
    if isinstance(argument, Pointer):
        return ["pointer", argument.buffer]
    if isinstance(argument, StructArgument):
        return ["struct", *(_plain(each) for each in argument.fields)]
    if isinstance(argument, MapArgument):
        form = (argument.element, argument.shape, argument.box, argument.swizzle, argument.fill_nan)
        return ["map", argument.buffer, *form]
    return ["number", argument.dtype.str, argument.tobytes().hex()]


def outputs_of(case: ProbeCase, contents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the output buffers of a case, with their types."""
    return {
        name: np.frombuffer(bytearray(contents[name]), case.buffers[name].dtype).reshape(case.buffers[name].shape)
        for name in case.outputs
    }


def _bytes(name: str, content: np.ndarray) -> spec.Buffer:
    data = np.frombuffer(np.ascontiguousarray(content).tobytes(), np.uint8)
    return spec.Buffer(name, DATA_TYPES["u8"], data.shape, spec.Fill("array", array=data))


def _argument(argument: Argument, maps: dict[str, spec.Map]) -> spec.Argument:
    """Returns the argument, and adds its tensor maps to the others."""
    if isinstance(argument, Pointer):
        return spec.AddressArgument(argument.buffer)
    if isinstance(argument, StructArgument):
        return spec.Struct(tuple((f"field {n}", _argument(field, maps)) for n, field in enumerate(argument.fields)))
    if isinstance(argument, MapArgument):
        name = f"map {len(maps)}"
        emulated = argument.swizzle.upper() in EMULATED_SWIZZLES
        known = (argument if emulated else replace(argument, swizzle="none")).at(ANY_ADDRESS)
        maps[name] = spec.Map(
            name,
            argument.buffer,
            box=known.box,
            dims=known.dims,
            strides=known.strides,
            element_strides=known.element_strides,
            element=argument.element,
            swizzle=known.swizzle,
            fill_nan=argument.fill_nan,
            gpu_swizzle="" if emulated else argument.swizzle,
        )
        return spec.AddressArgument(name)
    return spec.Raw(argument.tobytes())


def encode(outputs: Outputs) -> dict[str, Any]:
    """Returns outputs as plain data: {case: {buffer: {"dtype", "shape", "zlib"}}}, the bytes deflated, in base64.

    If that is much shorter, "steps" holds the differences of neighbours, their lowest bytes first, deflated. This is so
    for results of ordered inputs.
    """
    return {
        case: {name: _encode(np.ascontiguousarray(array)) for name, array in buffers.items()}
        for case, buffers in outputs.items()
    }


def _encode(array: np.ndarray) -> dict[str, Any]:
    words = array.ravel().view(f"u{array.itemsize}")
    steps = np.diff(words, prepend=words.dtype.type(0)).view(np.uint8).reshape(-1, array.itemsize).T
    plain, by_steps = (zlib.compress(data.tobytes(), 9) for data in (array, steps))
    name, data = ("steps", by_steps) if 2 * len(by_steps) < len(plain) else ("zlib", plain)
    return {"dtype": array.dtype.str, "shape": list(array.shape), name: base64.b64encode(data).decode()}


def decode(data: dict[str, Any]) -> Outputs:
    """Returns the inverse of `encode`."""
    return {case: {name: _decode(array) for name, array in buffers.items()} for case, buffers in data.items()}


def _decode(array: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(array["dtype"])
    if "zlib" in array:
        return np.frombuffer(_inflate(array["zlib"]), dtype).reshape(array["shape"])
    steps = np.frombuffer(_inflate(array["steps"]), np.uint8).reshape(dtype.itemsize, -1)
    words = np.cumsum(np.ascontiguousarray(steps.T).view(f"u{dtype.itemsize}").ravel(), dtype=f"u{dtype.itemsize}")
    return words.view(dtype).reshape(array["shape"])


def _inflate(text: str) -> bytes:
    """Raises ValueError for data that is not a result of a probe, because the file may come from anywhere."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(base64.b64decode(text), MOST_ANSWER_BYTES)
    except zlib.error as error:
        raise ValueError(f"an answer that cannot be unpacked ({error})") from None
    if not stream.eof:
        raise ValueError(f"an answer of more than {MOST_ANSWER_BYTES >> 20} MiB, or cut short")
    return found


def differences(expected: Outputs, found: Outputs) -> list[str]:
    """Returns one line per case and buffer whose bits differ."""
    lines = []
    for case, buffers in expected.items():
        for name, array in buffers.items():
            other = found[case][name]
            words = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
            others = np.ascontiguousarray(other).view(f"u{other.dtype.itemsize}")
            if words.shape != others.shape:
                lines.append(f"{case}, {name}: shapes {words.shape} and {others.shape}")
            elif (words != others).any():
                where = tuple(int(i) for i in np.argwhere(words != others)[0])
                lines.append(
                    f"{case}, {name}: {int((words != others).sum())} of {words.size} elements differ, "
                    f"first at {where}: {int(words[where]):#x} and {int(others[where]):#x}"
                )
    return lines
