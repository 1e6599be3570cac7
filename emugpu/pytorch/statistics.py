"""What `torch.cuda.memory_stats` and `memory_summary` tell: how much memory tensors have. It is counted.

Each storage is an allocation of the driver, so all memory that is reserved is allocated, and none is cached.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_WHEN = ("current", "peak", "allocated", "freed")
_BYTES = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
_NUMBERS = ("allocation", "active", "segment")
_NEVER = ("inactive_split", "inactive_split_bytes")
_OVERSIZE = ("oversize_allocations", "oversize_segments")
_EVENTS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams")


def functions(library: ctypes.CDLL) -> dict[str, Callable[..., Any]]:
    """Returns the functions of `torch._C` behind the statistics of `torch.cuda`."""

    def stats(*_: Any) -> dict[str, Any]:
        counts = (ctypes.c_int64 * 8)()
        library.emulated_counts(counts)
        nbytes, numbers = (dict(zip(_WHEN, counts[at : at + 4], strict=True)) for at in (0, 4))
        none = dict.fromkeys(_WHEN, 0)
        made: dict[str, Any] = {name: _pools(nbytes) for name in _BYTES} | {name: _pools(numbers) for name in _NUMBERS}
        made |= {name: _pools(none) for name in _NEVER} | dict.fromkeys(_OVERSIZE, none)
        return {**made, **dict.fromkeys(_EVENTS, 0)}

    return {
        "_cuda_memoryStats": stats,
        "_cuda_resetPeakMemoryStats": lambda *_: library.emulated_forget(True),
        "_cuda_resetAccumulatedMemoryStats": lambda *_: library.emulated_forget(False),
    }


def _pools(counts: dict[str, int]) -> dict[str, dict[str, int]]:
    return {"all": counts, "large_pool": counts, "small_pool": dict.fromkeys(_WHEN, 0)}
