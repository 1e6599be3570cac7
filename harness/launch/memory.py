"""The buffers, symbols and tensor maps of a launch file on a device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from harness.emulator import Device, EmulatorError, LaunchError, Module, TensorMap
from harness.emulator.memory.tensor_map import ElementType
from harness.errors import CannotRun, UsageProblem
from harness.launch.elements import DATA_TYPES, DataType
from harness.launch.expression import ExpressionError
from harness.launch.spec import Buffer, Expectation, LaunchFile, Map
from harness.launch.values import as_numbers, load_file, make_values
from harness.launch.verdict import Verdict, judge


@dataclass(frozen=True)
class Placed:
    """A buffer at its device address. first: its values before the first launch, None: unknown."""

    buffer: Buffer
    address: int
    shape: tuple[int, ...]
    first: NDArray | None


class Memory:
    """What a launch file wants to be on the device; made anew for every run."""

    def __init__(self, file: LaunchFile, device: Device, module: Module) -> None:
        self.file = file
        self.device = device
        self.buffers: Mapping[str, Placed] = {
            name: self._symbol(buffer, module, n) if buffer.symbol else self._buffer(buffer, n)
            for n, (name, buffer) in enumerate(file.buffers.items())
        }
        self.maps: Mapping[str, TensorMap] = {name: self._map(wanted) for name, wanted in file.maps.items()}
        self._pointers: dict[str, int] = {}

    def pointer_to_map(self, name: str) -> int:
        """The address of a tensor map in global memory; it is put there once."""
        if name not in self._pointers:
            self._pointers[name] = self.device.upload_tensor_map(self.maps[name], f"map {name}")
        return self._pointers[name]

    def download(self, name: str) -> NDArray:
        """What a buffer holds now. Raises CannotRun if a part of it was never written."""
        placed = self.buffers[name]
        dtype = placed.buffer.dtype
        try:
            data = self.device.download(placed.address, np.uint8, dtype.memory_bytes(placed.shape))
        except EmulatorError as error:
            raise CannotRun(
                f'buffer {name}: {error}; init = "nan" or "zeros" shows which elements are not written'
            ) from error
        return dtype.from_memory(data, placed.shape)

    def contents(self) -> dict[str, NDArray]:
        """What all buffers hold, without those of which a part was never written."""
        found = {}
        for name in self.buffers:
            with suppress(CannotRun):
                found[name] = self.download(name)
        return found

    def judge(self, expectation: Expectation) -> Verdict:
        """Compares a buffer with what it should hold."""
        placed = self.buffers[expectation.buffer]
        dtype = placed.buffer.dtype
        where = f"{self.file.path}: expect.{expectation.buffer}"
        if expectation.expression is None:
            assert expectation.file
            expected = as_numbers(load_file(expectation.file, dtype, placed.shape, where), dtype)
        else:
            expected = self._evaluate(expectation, where)
            try:
                expected = np.broadcast_to(expected, placed.shape)
            except ValueError:
                raise UsageProblem(
                    f"{where} = {expectation.text}: its shape is {list(expected.shape)}, "
                    f"that of the buffer {list(placed.shape)}; they must agree"
                ) from None
        return judge(expectation, dtype, self.download(expectation.buffer), expected)

    def _evaluate(self, expectation: Expectation, where: str) -> NDArray:
        assert expectation.expression
        values = {}
        for name in expectation.expression.names:
            placed = self.buffers[name]
            if placed.first is None:
                raise UsageProblem(f"{where} = {expectation.text}: {name} is uninitialised; give it an init")
            values[name] = as_numbers(placed.first, placed.buffer.dtype)
        try:
            return expectation.expression.evaluate(values)
        except ExpressionError as error:
            raise UsageProblem(f"{where}: {error}; they must go together") from None

    # ---- placing ----

    def _values(self, buffer: Buffer, shape: tuple[int, ...] | None, number: int) -> NDArray | None:
        fill = buffer.fill
        assert fill is not None
        if fill.file is not None:
            where = f"{self.file.path}: {'symbols' if buffer.symbol else 'buffers'}.{buffer.name}.init"
            return load_file(fill.file, buffer.dtype, shape, where)
        assert shape is not None
        return make_values(fill, buffer.dtype, shape, number)

    def _buffer(self, buffer: Buffer, number: int) -> Placed:
        values = self._values(buffer, buffer.shape, number)
        try:
            if values is not None:
                data = buffer.dtype.to_memory(values)
                return Placed(buffer, self.device.upload(data, buffer.name, buffer.address), values.shape, values)
            assert buffer.shape is not None
            nbytes = buffer.dtype.memory_bytes(buffer.shape)
            address = self.device.alloc(nbytes, buffer.name, buffer.address)
        except ValueError as error:
            raise UsageProblem(f"{self.file.path}: buffers.{buffer.name}: {error}") from None
        for offset, file in buffer.parts:
            where = f"{self.file.path}: buffers.{buffer.name}.parts"
            part = load_file(file, DATA_TYPES["u8"], None, where)
            if not 0 <= offset <= nbytes - part.nbytes:
                raise UsageProblem(f"{where}: {file} at {offset} does not fit the {nbytes} bytes of the buffer")
            self.device.write(address + offset, part)
        return Placed(buffer, address, buffer.shape, None)

    def _symbol(self, buffer: Buffer, module: Module, number: int) -> Placed:
        where = f"{self.file.path}: symbols.{buffer.name}"
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
        raise UsageProblem(f"{self.file.path}: maps.{wanted.name}: {problem}")


def _packed_strides(dims: tuple[int, ...], dtype: DataType) -> tuple[int, ...]:
    return tuple(int(np.prod(dims[:n], dtype=np.int64)) * dtype.bits // 8 for n in range(1, len(dims)))
