"""Calls test functions of a project with small sizes: ``caller.py FILE FUNCTION [NAME=VALUE...]``.

The arguments are those of the first case of each `pytest.mark.parametrize`, unless NAME=VALUE replaces them. VALUE is
an expression of Python that may use `torch`. A name that the function does not have is left out, so one list of values
serves all functions of a project.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch


def main(file: str, name: str, *given: str) -> None:
    function = getattr(_module(Path(file)), name)
    values: dict[str, Any] = {}
    for mark in getattr(function, "pytestmark", ()):
        if mark.name == "parametrize":
            values.update(_first(*mark.args[:2]))
    for word in given:
        key, _, text = word.partition("=")
        values[key] = eval(text, {"torch": torch})
    wanted = inspect.signature(function).parameters
    values = {key: value for key, value in values.items() if key in wanted}
    if "monkeypatch" in wanted:
        values["monkeypatch"] = pytest.MonkeyPatch()
    print(f"{name}({', '.join(f'{key}={value}' for key, value in values.items())})", flush=True)
    function(**values)


def _module(path: Path) -> Any:
    """Imports a file of tests, of which the package may be named like another one."""
    for folder in path.parents:
        if (folder / "pyproject.toml").is_file():
            sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _first(names: str | list[str], cases: Any) -> dict[str, Any]:
    keys = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    case = next(iter(cases))
    values = getattr(case, "values", None)
    if values is None or callable(values):  # it is not a pytest.param
        values = case if len(keys) > 1 else [case]
    return dict(zip(keys, values, strict=True))


main(*sys.argv[1:])
