"""Reads the arguments of a launch in a launch file: numbers, names, null, and tables for everything else."""

from __future__ import annotations

from typing import Any

from emugpu.launch.spec import NULL, AddressArgument, Argument, DataType, Null, Raw, Scalar, Struct, find_type, fits
from emugpu.launch.toml_table import TomlTable, is_whole


class ArgumentReader:
    """Reads the arguments of a launch, which may be nested.

    ``names`` are those of buffers, symbols and maps, ``maps`` those of maps only.
    """

    def __init__(self, table: TomlTable, names: tuple[str, ...], maps: tuple[str, ...]) -> None:
        self.table = table
        self.names = names
        self.maps = maps

    def read(self, key: str, value: Any) -> Argument:
        if isinstance(value, bool | int | float):
            return Scalar(value)
        if isinstance(value, str):
            return Null() if value == NULL else self._reference(key, value)
        if isinstance(value, dict):
            return self._table(key, value)
        self.table.fail(
            key,
            value,
            'must be a number, a name, "null", or a table: { TYPE = number }, { fields = [...] }, { pointer = name }, '
            '{ hex = "..." }',
        )

    def _reference(self, key: str, name: str, pointer: bool = False, offset: int = 0) -> AddressArgument:
        if name not in self.names:
            known = ", ".join(self.names) or "none"
            self.table.fail(key, name, f'there is no such buffer, map or symbol; there are {known}, and "null"')
        return AddressArgument(name, pointer, offset)

    def _table(self, key: str, value: dict[str, Any]) -> Argument:
        if set(value) == {"fields"}:
            return self._struct(key, value["fields"])
        if "pointer" in value and set(value) <= {"pointer", "offset"}:
            name, offset = value["pointer"], value.get("offset", 0)
            if not isinstance(name, str) or not is_whole(offset) or offset < 0:
                self.table.fail(key, value, "must be { pointer = a buffer or map, offset = bytes of at least 0 }")
            if offset and name in self.maps:
                self.table.fail(key, value, "a pointer to a tensor map has no offset; leave it out")
            return self._reference(key, name, pointer=True, offset=offset)
        if set(value) == {"hex"}:
            try:
                return Raw(bytes.fromhex(value["hex"]))
            except (TypeError, ValueError):
                self.table.fail(key, value, 'must be pairs of hexadecimal digits, for example { hex = "01 ff" }')
        if len(value) == 1:
            [(name, number)] = value.items()
            dtype = find_type(name)
            if dtype is not None and not dtype.packed:
                return self._typed(key, dtype, number)
        self.table.fail(
            key,
            value,
            "must be { TYPE = number }, { fields = [...] }, { pointer = name, offset = bytes } or { hex = ... }",
        )

    def _typed(self, key: str, dtype: DataType, number: Any) -> Scalar:
        if not (is_whole(number) or (dtype.is_float and isinstance(number, float))) or not fits(number, dtype):
            self.table.fail(key, number, f"must be a value of {dtype.name}; write one, or another type")
        return Scalar(number, dtype)

    def _struct(self, key: str, value: Any) -> Struct:
        if isinstance(value, dict):
            items = [(f".{name}", item) for name, item in value.items()]
        elif isinstance(value, list):
            items = [(f"[{n}]", item) for n, item in enumerate(value)]
        else:
            self.table.fail(f"{key}.fields", value, "must be an array of fields in their order, or a table of them")
        return Struct(tuple((name.strip(".[]"), self.read(f"{key}.fields{name}", item)) for name, item in items))
