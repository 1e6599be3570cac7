"""Reads a TOML table with types, and writes values as TOML.

An error is one line with the file, the key, its value, the rule and the fix.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from emugpu.errors import UsageProblem

LARGEST_SIZE = 2**31 - 1


class TomlTable:
    """A table of a file. ``where`` is its key, with dots. Each key is taken out when it is read."""

    def __init__(self, path: Path, where: str, values: Mapping[str, Any]) -> None:
        self.path = path
        self.where = where
        self._values = dict(values)

    def fail(self, key: str, value: object, rule: str) -> NoReturn:
        """Refuses a value. ``rule`` says what it must be, and what to write instead."""
        raise UsageProblem(f"{self.path}: {self.key(key)} = {_shown(value)}: {rule}")

    def lacks(self, key: str, rule: str) -> NoReturn:
        """Reports a missing key."""
        raise UsageProblem(f"{self.path}: {self.key(key)} is missing: {rule}")

    def key(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where and key else self.where or key

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def take(self, key: str, default: Any = None) -> Any:
        return self._values.pop(key, default)

    def only(self, *known: str) -> None:
        """Refuses other keys. Call it first, because a misspelt key would otherwise be reported as missing."""
        for key, value in self._values.items():
            if key in known:
                continue
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(known)}"
            self.fail(key, value, f"there is no such key; {hint}")

    def text(self, key: str, rule: str, default: str | None = None) -> str:
        if key not in self and default is not None:
            return default
        if key not in self:
            self.lacks(key, rule)
        value = self.take(key)
        if not isinstance(value, str) or not value or "\0" in value:
            self.fail(key, value, f"must be text: {rule}")
        return value

    def optional_text(self, key: str, rule: str) -> str | None:
        return self.text(key, rule) if key in self else None

    def whole(self, key: str, least: int, most: int, rule: str, default: int | None = None) -> int:
        if key not in self and default is not None:
            return default
        value = self.take(key)
        if not is_whole(value) or not least <= value <= most:
            self.fail(key, value, f"must be a whole number from {least} to {most}: {rule}")
        return int(value)

    def number(self, key: str, most: float, rule: str) -> float:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            self.fail(key, value, f"must be a number from 0 to {most:g}: {rule}")
        return float(value)

    def truth(self, key: str, rule: str, default: bool) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            self.fail(key, value, f"must be true or false: {rule}")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.take(key, default)
        if value not in choices:
            self.fail(key, value, f"must be one of {', '.join(choices)}")
        return str(value)

    def sizes(self, key: str, rule: str, *, least: int = 1, most_entries: int = 5) -> tuple[int, ...] | None:
        """Returns one size or several as a tuple, or None if the key is missing."""
        if key not in self:
            return None
        value = self.take(key)
        entries = [value] if is_whole(value) else value
        if (
            not isinstance(entries, list)
            or not 1 <= len(entries) <= most_entries
            or not all(is_whole(n) and least <= n <= LARGEST_SIZE for n in entries)
        ):
            self.fail(key, value, f"must be 1 to {most_entries} whole numbers, {least} to {LARGEST_SIZE}: {rule}")
        return tuple(entries)

    def table(self, key: str, value: Any, rule: str) -> TomlTable:
        """Returns a value that must itself be a table."""
        if not isinstance(value, dict):
            self.fail(key, value, f"must be a table: {rule}")
        return TomlTable(self.path, self.key(key), value)

    def tables(self, key: str, rule: str) -> Iterator[tuple[str, TomlTable]]:
        """Yields the tables in a table with their names; none if the key is missing."""
        value = self.take(key, {})
        for name, inner in self.table(key, value, rule)._values.items():
            yield name, TomlTable(self.path, self.key(key), {}).table(name, inner, rule)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yields the remaining keys and values."""
        yield from self._values.items()
        self._values = {}


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def as_toml(value: Any) -> str:
    """Returns plain data as TOML in one line. Strings are written as JSON, which TOML reads alike."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {as_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return float.__repr__(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else as_toml(key)


def _shown(value: object) -> str:
    text = as_toml(value) if isinstance(value, str) else str(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."
