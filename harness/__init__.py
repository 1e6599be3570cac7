"""Build, run, validate and measure the Blackwell matmul kernels in ``kernels/``; and an emulated GPU for anyone's:
`emulated_gpu` for programs in Python, `run_ptx` for kernels and NumPy arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.driver.attached import emulated_gpu as emulated_gpu
    from harness.launch.arrays import run_ptx as run_ptx

__version__ = "0.1.0"
__all__ = ["emulated_gpu", "run_ptx"]


def __getattr__(name: str) -> Any:
    """Imports what is asked for, and no more."""
    if name == "emulated_gpu":
        from harness.driver.attached import emulated_gpu

        return emulated_gpu
    if name == "run_ptx":
        from harness.launch.arrays import run_ptx

        return run_ptx
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
