"""Converts Python values to kernel arguments and packs them into the parameter block (PTX ISA 5.1.6.1, 5.2.1).

A parameter that is a struct by value takes a tuple or a dict of its fields. They are laid out as in C, each at a
multiple of its size, in the order in which they are given:

    NumPy scalar or array   unchanged
    int                     8 bytes if it is a device address, else 4, the C int
    float                   4 bytes, the C float
    bool                    1 byte
    None                    8 bytes, the null pointer
    TensorMap               128 bytes at a multiple of 64
    tuple, dict             a nested struct
    bytes                   unchanged, at any address
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emugpu.emulator.errors import LaunchError
from emugpu.emulator.memory.address_space import GLOBAL_WINDOW, PARAM_WINDOW
from emugpu.emulator.memory.bytes import round_up
from emugpu.emulator.memory.tensor_map import TensorMap
from emugpu.emulator.memory.tensor_map_bytes import ALIGNMENT, NBYTES, encode
from emugpu.emulator.names import find_name, listed, readable_name
from emugpu.emulator.ptx.ast import Parameter, PtxKernel

_FLOATS: dict[str, type[np.floating]] = {"f64": np.float64, "f32": np.float32, "f16": np.float16}


@dataclass(frozen=True)
class ParameterBlock:
    """The parameters of a kernel. maps: by the generic address that the kernel passes, a counter name and the map."""

    data: bytes
    maps: dict[int, tuple[str, TensorMap]]


def pack(kernel: PtxKernel, arguments: Sequence[Any] | Mapping[str, Any]) -> ParameterBlock:
    """Returns the parameter block of a launch. ``arguments``: one for each parameter, in order or by name.

    Raises LaunchError, which names the argument, its value, and what the parameter needs.
    """
    block = bytearray(kernel.parameter_bytes)
    maps: dict[int, tuple[str, TensorMap]] = {}
    for position, (parameter, argument) in enumerate(zip(kernel.parameters, order(kernel, arguments), strict=True)):
        where = f"argument {position}"
        if isinstance(argument, TensorMap):
            if parameter.size != NBYTES or parameter.align < ALIGNMENT:
                raise LaunchError(
                    f"{where} is a tensor map, but parameter '{parameter.name}' is {parameter.size} bytes aligned to "
                    f"{parameter.align}; a tensor map needs {NBYTES} bytes aligned to "
                    f"{ALIGNMENT} (grid constant)"
                )
            maps[PARAM_WINDOW + parameter.offset] = (where, argument)
            data = encode(argument)
        elif isinstance(argument, tuple | list | Mapping):
            data = _struct(where, parameter, argument, maps)
        else:
            data = _scalar(where, parameter, argument)
        block[parameter.offset : parameter.offset + parameter.size] = data
    return ParameterBlock(bytes(block), maps)


def order(kernel: PtxKernel, arguments: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any]:
    """Returns one argument for each parameter, in their order. Raises LaunchError, which names what is missing."""
    parameters = kernel.parameters
    if not isinstance(arguments, Mapping):
        if len(arguments) != len(parameters):
            wanted = listed([parameter.name.removeprefix(f"{kernel.name}_") for parameter in parameters])
            raise LaunchError(
                f"kernel '{readable_name(kernel.name)}' takes {len(parameters)} arguments"
                f"{f' ({wanted})' if wanted else ''}, {len(arguments)} given"
            )
        return arguments
    names = [parameter.name for parameter in parameters]
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        found = find_name(name, names, "parameter")
        if found in given:
            raise LaunchError(f"argument '{name}': parameter '{found}' is given twice")
        given[found] = value
    missing = [name for name in names if name not in given]
    if missing:
        raise LaunchError(f"kernel '{readable_name(kernel.name)}': no argument for {', '.join(missing)}")
    return [given[name] for name in names]


def _scalar(where: str, parameter: Parameter, argument: Any) -> bytes:
    """Returns the bytes of a parameter that is neither a tensor map nor a struct."""
    if argument is None:
        return bytes(parameter.size)
    if isinstance(argument, bytes | bytearray):
        data = bytes(argument)
    elif isinstance(argument, np.generic | np.ndarray):
        data = _numpy_bytes(argument)
    elif parameter.is_array:
        raise LaunchError(
            f"{where} must be a TensorMap or {parameter.size} bytes for parameter '{parameter.name}', or the fields "
            f"of a struct of that size"
        )
    elif isinstance(argument, float) and parameter.type[0] in "us":
        raise LaunchError(
            f"{where} = {argument}: '{parameter.name}' is an integer (.{parameter.type}); give a whole number, or a "
            "NumPy scalar to pass its bits"
        )
    elif isinstance(argument, float) or (isinstance(argument, int) and parameter.type in _FLOATS):
        default: type[np.floating] = np.float64 if parameter.size == 8 else np.float32
        try:
            with np.errstate(over="raise"):
                data = np.asarray(argument, _FLOATS.get(parameter.type, default)).tobytes()
        except ArithmeticError:
            raise LaunchError(f"{where} = {argument} is too large for '{parameter.name}'") from None
    elif isinstance(argument, int):
        limit = 1 << 8 * parameter.size
        if not -limit // 2 <= argument < limit:
            raise LaunchError(f"{where} = {argument} does not fit the {parameter.size} bytes of '{parameter.name}'")
        data = (argument % limit).to_bytes(parameter.size, "little")
    else:
        raise LaunchError(
            f"{where} has type {type(argument).__name__}; give a TensorMap, int, float, NumPy value, bytes, None, or "
            "a tuple or dict of fields"
        )
    if len(data) != parameter.size:
        raise LaunchError(f"{where} has {len(data)} bytes; parameter '{parameter.name}' has {parameter.size}")
    return data


# ---- structs ----


@dataclass(frozen=True)
class _Field:
    """A field at its place: its offset in the parameter, and its bytes or its tensor map."""

    path: str
    offset: int
    value: bytes | TensorMap

    @property
    def end(self) -> int:
        return self.offset + (NBYTES if isinstance(self.value, TensorMap) else len(self.value))


def _struct(where: str, parameter: Parameter, argument: Any, maps: dict[int, tuple[str, TensorMap]]) -> bytes:
    fields = list(_lay_out(where, argument, 0))
    alignment = _alignment(argument)
    end = max((field.end for field in fields), default=0)
    # Compilers differ in whether the padding after the last field counts.
    if not end <= parameter.size <= round_up(end, alignment):
        places = "; ".join(f"{f.path.removeprefix(where)} at {f.offset} to {f.end}" for f in fields)
        raise LaunchError(
            f"{where}: the fields take {round_up(end, alignment)} bytes, parameter '{parameter.name}' has "
            f"{parameter.size} ({places}); an int is 4 bytes, np.int64(..) is 8"
        )
    data = bytearray(parameter.size)
    for field in fields:
        if isinstance(field.value, TensorMap):
            if parameter.align < ALIGNMENT:
                raise LaunchError(
                    f"{field.path} is a tensor map, but parameter '{parameter.name}' is aligned to {parameter.align}; "
                    f"a tensor map needs {ALIGNMENT}"
                )
            maps[PARAM_WINDOW + parameter.offset + field.offset] = (field.path, field.value)
            data[field.offset : field.end] = encode(field.value)
        else:
            data[field.offset : field.end] = field.value
    return bytes(data)


def _lay_out(path: str, value: Any, offset: int) -> Iterator[_Field]:
    """Yields the fields of a value that starts at an offset, with nested structs flattened."""
    if isinstance(value, Mapping):
        items = [(f"{path}.{name}", item) for name, item in value.items()]
    elif isinstance(value, tuple | list):
        items = [(f"{path}[{n}]", item) for n, item in enumerate(value)]
    else:
        yield _Field(path, offset, value if isinstance(value, TensorMap) else _field_bytes(path, value))
        return
    at = offset
    for name, item in items:
        at = round_up(at, _alignment(item))
        fields = list(_lay_out(name, item, at))
        yield from fields
        at = max((field.end for field in fields), default=at)
        if isinstance(item, Mapping | tuple | list):
            at = round_up(at, _alignment(item))


def _field_bytes(path: str, value: Any) -> bytes:
    if value is None:
        return bytes(8)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, np.generic | np.ndarray):
        return _numpy_bytes(value)
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, float):
        return np.float32(value).tobytes()
    if isinstance(value, int):
        size = _int_bytes(value)
        if not -(1 << 31) <= value < 1 << 32 and size == 4:
            raise LaunchError(f"{path} = {value} fits no int of 4 bytes; write np.int64({value})")
        return (value % (1 << 8 * size)).to_bytes(size, "little")
    raise LaunchError(
        f"{path} has type {type(value).__name__}; a field is a NumPy value, int, float, bool, None, bytes, TensorMap, "
        "tuple or dict"
    )


def _numpy_bytes(value: np.generic | np.ndarray) -> bytes:
    """Returns the bytes of a NumPy value. Padding between the fields of a struct is 0; NumPy leaves it undefined."""
    given = np.asarray(value)
    if given.dtype.names is None:
        return given.tobytes()
    clean = np.zeros(given.shape, given.dtype)
    _copy_fields(clean, given)
    return clean.tobytes()


def _copy_fields(to: np.ndarray, given: np.ndarray) -> None:
    for name in given.dtype.names or ():
        if given[name].dtype.names is None:
            to[name] = given[name]
        else:
            _copy_fields(to[name], given[name])


def _int_bytes(value: int) -> int:
    return 8 if GLOBAL_WINDOW <= value < 1 << 64 else 4


def _alignment(value: Any) -> int:
    """Returns the alignment of a field."""
    if isinstance(value, Mapping):
        return max(map(_alignment, value.values()), default=1)
    if isinstance(value, tuple | list):
        return max(map(_alignment, value), default=1)
    if isinstance(value, TensorMap):
        return ALIGNMENT
    if isinstance(value, np.generic | np.ndarray):
        return value.dtype.alignment
    if isinstance(value, bool | bytes | bytearray):
        return 1
    if isinstance(value, int):
        return _int_bytes(value)
    return 8 if value is None else 4
