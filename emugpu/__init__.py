"""An emulated GPU that runs PTX and whole CUDA programs exactly, and checks them: `emulated_gpu` for programs in
Python, `run_ptx` for kernels and NumPy arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emugpu.driver.attached import emulated_gpu as emulated_gpu
    from emugpu.launch.arrays import run_ptx as run_ptx

__version__ = "0.2.0"
__all__ = ["emulated_gpu", "run_ptx"]


def __getattr__(name: str) -> Any:
    """Imports what is asked for, and no more."""
    if name == "emulated_gpu":
        from emugpu.driver.attached import emulated_gpu

        return emulated_gpu
    if name == "run_ptx":
        from emugpu.launch.arrays import run_ptx

        return run_ptx
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
