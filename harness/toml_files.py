"""Reads the TOML files that users write: suites, sweeps, configurations and constants of a GPU."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from emugpu.errors import UsageProblem
from emugpu.files import read_text_file

T = TypeVar("T")


def read_toml(path: Path, what: str, read: Callable[[dict[str, Any]], T]) -> T:
    """Returns the result of ``read`` for the data of a file. Raises `UsageProblem`, also for one that ``read`` raises,
    with ``what`` in front, which names the file.
    """
    try:
        data = tomllib.loads(read_text_file(path))
    except OSError as error:
        raise UsageProblem(f"{what}: cannot be read ({error.strerror}); name another file") from None
    except ValueError as error:
        raise UsageProblem(f"{what}: is not TOML ({error}); correct it") from None
    try:
        return read(data)
    except UsageProblem as error:
        raise UsageProblem(f"{what}: {error}") from None


def as_words(key: str, value: object) -> str:
    """Returns a number, a text, true or false, or a list of them as the words of the command line."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str | int) for one in values):
        raise UsageProblem(f"{key} is {value!r}; write a number, a text, true or false, or a list of them")
    return ",".join(str(one).lower() if isinstance(one, bool) else str(one) for one in values)
