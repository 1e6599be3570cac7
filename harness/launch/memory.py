"""The buffers, symbols and tensor maps of a launchable on a device, and the arguments that its launches get."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.emulator import EmulatorError, LaunchError, Module, TensorMap
from harness.emulator.arguments import order
from harness.emulator.memory.tensor_map import ElementType
from harness.emulator.ptx.ast import Kernel, Parameter
from harness.errors import CannotRun, UsageProblem
from harness.launch.elements import DATA_TYPES, DataType
from harness.launch.spec import Argument, Buffer, Launch, Launchable, Map, Null, Raw, Reference, Scalar, Struct, Verdict
from harness.launch.values import load_file, make_values

POINTER_BYTES = 8


class DeviceMemory(Protocol):
    """The memory of a device, emulated or not, as `harness.emulator.Device` has it."""

    def upload(self, array: NDArray[Any], name: str = "", at: int | None = None) -> int: ...

    def alloc(self, nbytes: int, name: str = "", at: int | None = None) -> int: ...

    def write(self, address: int, array: NDArray[Any]) -> None: ...

    def download(self, address: int, dtype: Any, shape: int | tuple[int, ...]) -> NDArray[Any]: ...

    def symbol(self, name: str, module: Module | None = None) -> int: ...

    def symbol_bytes(self, name: str, module: Module | None = None) -> int: ...

    def upload_tensor_map(self, tensor_map: TensorMap, name: str = "") -> int: ...


@dataclass(frozen=True)
class Placed:
    """A buffer at its device address. first: its values before the first launch, None: unknown."""

    buffer: Buffer
    address: int
    shape: tuple[int, ...]
    first: NDArray[Any] | None


class Memory:
    """Holds what a launchable needs on the device; it is made anew for every run."""

    def __init__(self, what: Launchable, device: DeviceMemory, module: Module) -> None:
        self.what = what
        self.device = device
        self.buffers: Mapping[str, Placed] = {
            name: self._symbol(buffer, module, n) if buffer.symbol else self._buffer(buffer, n)
            for n, (name, buffer) in enumerate(what.buffers.items())
        }
        self.maps: Mapping[str, TensorMap] = {name: self._map(wanted) for name, wanted in what.maps.items()}
        self._pointers: dict[str, int] = {}

    def pointer_to_map(self, name: str) -> int:
        """Returns the address of a tensor map in global memory; it is put there once."""
        if name not in self._pointers:
            self._pointers[name] = self.device.upload_tensor_map(self.maps[name], f"map {name}")
        return self._pointers[name]

    def download(self, name: str) -> NDArray[Any]:
        """Returns what a buffer holds now. Raises CannotRun if a part of it was never written."""
        placed = self.buffers[name]
        dtype = placed.buffer.dtype
        try:
            data = self.device.download(placed.address, np.uint8, dtype.memory_bytes(placed.shape))
        except EmulatorError as error:
            raise CannotRun(
                f'buffer {name}: {error}; init = "nan" or "zeros" shows which elements are not written'
            ) from error
        return dtype.from_memory(data, placed.shape)

    def contents(self, names: Collection[str]) -> dict[str, NDArray[Any]]:
        """Returns what these buffers hold, without those of which a part was never written."""
        found = {}
        for name in names:
            with suppress(CannotRun):
                found[name] = self.download(name)
        return found

    def judge(self) -> tuple[Verdict, ...]:
        """Returns whether buffers hold what they should."""
        first = {name: placed.first for name, placed in self.buffers.items()}
        return tuple(each.judge(self.download(each.buffer), first) for each in self.what.expectations)

    def arguments(self, launch: Launch, kernel: Kernel) -> list[Any]:
        """Returns one value per parameter. Raises LaunchError for names and numbers that do not fit the kernel."""
        given: Sequence[Argument] | Mapping[str, Argument]
        given = dict(launch.arguments) if launch.by_name else [argument for _, argument in launch.arguments]
        return [self._value(a, p) for a, p in zip(order(kernel, given), kernel.parameters, strict=True)]

    def _value(self, argument: Argument, parameter: Parameter | None) -> Any:
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
                return {name: self._value(field, None) for name, field in fields}
            case Reference(name, pointer, offset) if name in self.maps:
                # 8 bytes hold no map: the kernel takes a pointer to one.
                if pointer or (parameter is not None and parameter.size == POINTER_BYTES):
                    return self.pointer_to_map(name)
                return self.maps[name]
            case Reference(name, _, offset):
                return self.buffers[name].address + offset
        raise AssertionError(argument)

    # ---- placing ----

    def _values(self, buffer: Buffer, shape: tuple[int, ...] | None, number: int) -> NDArray[Any] | None:
        fill = buffer.fill
        assert fill is not None
        if fill.file is not None:
            where = self.what.place(f"{'symbols' if buffer.symbol else 'buffers'}.{buffer.name}.init")
            return load_file(fill.file, buffer.dtype, shape, where)
        assert shape is not None
        return make_values(fill, buffer.dtype, shape, number)

    def _buffer(self, buffer: Buffer, number: int) -> Placed:
        where = self.what.place(f"buffers.{buffer.name}")
        if buffer.fill is not None and buffer.fill.kind == "absent":
            assert buffer.address is not None and buffer.shape is not None
            return Placed(buffer, buffer.address, buffer.shape, None)
        values = self._values(buffer, buffer.shape, number)
        try:
            if values is not None:
                data = buffer.dtype.to_memory(values)
                return Placed(buffer, self.device.upload(data, buffer.name, buffer.address), values.shape, values)
            assert buffer.shape is not None
            nbytes = buffer.dtype.memory_bytes(buffer.shape)
            address = self.device.alloc(nbytes, buffer.name, buffer.address)
        except ValueError as error:
            raise UsageProblem(f"{where}: {error}") from None
        for offset, file in buffer.parts:
            part = load_file(file, DATA_TYPES["u8"], None, f"{where}.parts")
            if not 0 <= offset <= nbytes - part.nbytes:
                raise UsageProblem(f"{where}.parts: {file} at {offset} does not fit the {nbytes} bytes of the buffer")
            self.device.write(address + offset, part)
        return Placed(buffer, address, buffer.shape, None)

    def _symbol(self, buffer: Buffer, module: Module, number: int) -> Placed:
        where = self.what.place(f"symbols.{buffer.name}")
        try:
            address = self.device.symbol(buffer.name, module)
            size = self.device.symbol_bytes(buffer.name, module)
        except LaunchError as error:
            raise UsageProblem(f"{where}: {error}") from None
        shape = buffer.shape
        if shape is None and (buffer.fill is None or buffer.fill.kind != "file"):
            shape = (size * 8 // buffer.dtype.bits,)
        values = self._values(buffer, shape, number) if buffer.fill else None
        shape = values.shape if values is not None else shape
        assert shape is not None
        if not 0 < buffer.dtype.memory_bytes(shape) <= size:
            raise UsageProblem(
                f"{where}.shape = {list(shape)}: {buffer.dtype.memory_bytes(shape)} bytes of {buffer.dtype.name}, the "
                f"variable has {size}; make the shape smaller"
            )
        if values is not None:
            self.device.write(address, buffer.dtype.to_memory(values))
        placed = Placed(buffer, address, shape, values)
        if values is None and buffer.fill is None:
            data = self.device.download(address, np.uint8, buffer.dtype.memory_bytes(shape))
            placed = Placed(buffer, address, shape, buffer.dtype.from_memory(data, shape))
        return placed

    def _map(self, wanted: Map) -> TensorMap:
        placed = self.buffers[wanted.buffer]
        dims = wanted.dims or tuple(reversed(placed.shape))
        strides = wanted.strides or _packed_strides(dims, placed.buffer.dtype)
        if wanted.tile is not None:
            if len(wanted.tile) > len(dims):
                self._refuse(wanted, f"tile = {list(wanted.tile)} has more entries than the {len(dims)} dimensions")
            box = (*reversed(wanted.tile), *(1 for _ in range(len(dims) - len(wanted.tile))))
        else:
            box = wanted.box or ()
        try:
            return TensorMap(
                placed.address + wanted.offset,
                ElementType.from_name(wanted.element),
                dims,
                strides,
                box,
                wanted.element_strides,
                wanted.swizzle,
                wanted.fill_nan,
            )
        except ValueError as error:
            self._refuse(wanted, str(error))

    def _refuse(self, wanted: Map, problem: str) -> NoReturn:
        raise UsageProblem(f"{self.what.place(f'maps.{wanted.name}')}: {problem}")


def _packed_strides(dims: tuple[int, ...], dtype: DataType) -> tuple[int, ...]:
    return tuple(int(np.prod(dims[:n], dtype=np.int64)) * dtype.bits // 8 for n in range(1, len(dims)))
