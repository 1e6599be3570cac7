"""Calls `emugpu.pytorch.activate` when torch is imported."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

NAME = "torch"


def activate_when_imported() -> None:
    """Gives PyTorch the emulated GPU now, if it is imported, or else when it is."""
    loaded = sys.modules.get(NAME)
    if loaded is not None:
        from emugpu.pytorch import activate

        activate(loaded)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != NAME:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ActivatingLoader(spec.loader)
        return spec


class _ActivatingLoader(Loader):
    """The loader of torch. What it does not do itself, the usual loader does: pytest asks it for source."""

    def __init__(self, usual: Loader) -> None:
        self._usual = usual

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._usual.exec_module(module)
        from emugpu.pytorch import activate

        activate(module)
