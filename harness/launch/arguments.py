"""The arguments of a launch file as the emulator takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.emulator.arguments import order
from harness.emulator.ptx.ast import Kernel, Parameter
from harness.launch.elements import DataType
from harness.launch.memory import Memory
from harness.launch.spec import Argument, Launch, Null, Raw, Reference, Scalar, Struct

POINTER_BYTES = 8


def make_arguments(launch: Launch, kernel: Kernel, memory: Memory) -> list[Any]:
    """One value per parameter. Raises LaunchError for names and numbers that do not fit the kernel."""
    given: Sequence[Argument] | Mapping[str, Argument]
    given = dict(launch.arguments) if launch.by_name else [argument for _, argument in launch.arguments]
    arguments = order(kernel, given)
    return [_value(a, memory, p) for a, p in zip(arguments, kernel.parameters, strict=True)]


def _value(argument: Argument, memory: Memory, parameter: Parameter | None) -> Any:
    """parameter: of the kernel; None inside a struct."""
    match argument:
        case Null():
            return None
        case Scalar(value, None):
            return value
        case Scalar(value, DataType() as dtype):
            return dtype.numpy.type(value)
        case Raw(data):
            return data
        case Struct(fields):
            return {name: _value(field, memory, None) for name, field in fields}
        case Reference(name, pointer, offset) if name in memory.maps:
            # 8 bytes hold no map: the kernel takes a pointer to one.
            if pointer or (parameter is not None and parameter.size == POINTER_BYTES):
                return memory.pointer_to_map(name)
            return memory.maps[name]
        case Reference(name, _, offset):
            return memory.buffers[name].address + offset
    raise AssertionError(argument)
