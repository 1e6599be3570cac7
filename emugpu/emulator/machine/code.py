"""A translated kernel as plain data, in the form that the machine needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.ptx.ast import PtxKernel

EXIT = -1
"""Pseudo block: the thread has exited the kernel."""
BLOCKED = -2
SPLIT = -3
"""A block function returns EXIT, BLOCKED or SPLIT instead of a next block."""

BlockFunction = Callable[[Any, list[Value]], int]
"""A function that runs a basic block for a fragment with its registers. It returns the next block, or EXIT, BLOCKED or
SPLIT.
"""


@dataclass(frozen=True, eq=False)
class Code:
    """``functions[b]`` runs basic block ``b``, whose instructions are ``first[b]`` to ``last[b]``.

    families: for each block, a histogram of its instructions by family, for the counters. live_in: for each block,
    the set of registers that may be read at or after its start. dtypes: for each register, the dtype of its array.
    initial: the registers of a warp that starts. local_bytes: the size of a thread's local memory frame. symbols:
    the device variables that the kernel names. places: for each variable and parameter its state space and its
    offset there; for global ones the state space only. native: returns the plan of what can run natively, or None,
    for a launch that is quiet or not, and early or not (`Planner`); the plan is made at the first call.
    instruction_at: for each line of the generated source, the instruction it belongs to. values: what the values of
    loads can reach, a `LoadedValues`.
    """

    kernel: PtxKernel
    filename: str
    source: str
    instruction_at: Sequence[int | None]
    sites: Sequence[Site]
    values: Any
    functions: Sequence[BlockFunction]
    first: Sequence[int]
    last: Sequence[int]
    families: Sequence[Counter[str]]
    live_in: Sequence[int]
    dtypes: Sequence[Any]
    initial: Sequence[Value]
    static_shared: int
    local_bytes: int
    symbols: Sequence[str]
    places: Mapping[str, tuple[str, int]]
    native: Callable[[bool, bool], Any]
    uses_launch_control: bool
    uses_tensor_memory: bool
    between_clusters: str
    """The first instruction through which clusters may depend on one another, or "" if there is none."""
