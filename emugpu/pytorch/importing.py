"""Changes modules when they are imported: PyTorch gets the emulated GPU, CuTe DSL a CUDA runtime that counts it, and
Triton and TorchInductor benchmarks that end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def _torch(module: ModuleType) -> None:
    from emugpu.pytorch import activate

    activate(module)


def _triton_testing(module: ModuleType) -> None:
    from emugpu.pytorch import benchmarks

    benchmarks.install(module)


def _triton_autotuner(module: ModuleType) -> None:
    from emugpu.pytorch import benchmarks

    benchmarks.install_in_autotuner(module)


def _inductor_benchmarking(module: ModuleType) -> None:
    from emugpu.pytorch import benchmarks

    benchmarks.install_in_inductor(module)


def _cuda_bindings(module: ModuleType) -> None:
    from emugpu.pytorch import cuda_bindings

    cuda_bindings.install(module)


CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "torch": _torch,
    "cuda.bindings.runtime": _cuda_bindings,
    "triton.testing": _triton_testing,
    "triton.runtime.autotuner": _triton_autotuner,
    "torch._inductor.runtime.benchmarking": _inductor_benchmarking,
}
"""What is done with a module after it was imported."""


def activate_when_imported() -> None:
    """Changes those modules now that are imported, and the others when they are."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, change in CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in CHANGES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangingLoader(spec.loader, CHANGES[name])
        return spec


class _ChangingLoader(Loader):
    """The loader of a module. What it does not do itself, the usual loader does: pytest asks it for source."""

    def __init__(self, usual: Loader, change: Callable[[ModuleType], None]) -> None:
        self._usual, self._change = usual, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._usual.exec_module(module)
        self._change(module)
