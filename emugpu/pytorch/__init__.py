"""PyTorch's build for CPUs with the emulated GPU as its device "cuda".

Tensors of the device lie in memory that kernels can use. PyTorch's own operators run on the CPU, on the same memory,
and the verdict names them; the kernels of Triton and others run on the emulated GPU. `importing` calls `activate` in
every process that has an emulated GPU, when torch is imported. The C++ is in `shim/`.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from emugpu.errors import CannotRun

FIRST, LAST = (2, 11), (2, 13)
"""The versions of PyTorch that work, as in the extra ``torch`` of emugpu/pyproject.toml."""
_active: Any = None


def activate(torch: Any) -> None:
    """Gives PyTorch, which has just been imported, the emulated GPU. A build that cannot have it gets one line."""
    global _active
    if _active is not None:
        return
    try:
        _active = _activated(torch)
    except CannotRun as error:
        print(f"emulated GPU: {error}", file=sys.stderr)


def section_begins() -> None:
    """The GPU's log is empty now, so PyTorch tells it again which operators it computes."""
    if _active is not None:
        _active.emulated_section_begins()


def _activated(torch: Any) -> Any:
    if torch.version.cuda or torch.version.hip:
        raise CannotRun(
            f"PyTorch {torch.__version__} is a build for GPUs, whose machine code the emulated GPU does not run; "
            "install the one for CPUs: pip install torch --index-url https://download.pytorch.org/whl/cpu"
        )
    found = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if not FIRST <= found <= LAST:
        raise CannotRun(
            f"PyTorch {torch.__version__} does not get the emulated GPU; versions {FIRST[0]}.{FIRST[1]} to "
            f"{LAST[0]}.{LAST[1]} do: pip install 'emugpu[torch]'"
        )
    from emugpu.pytorch import cuda, library

    loaded = library.load(torch)
    cuda.install(torch, loaded)
    return loaded
