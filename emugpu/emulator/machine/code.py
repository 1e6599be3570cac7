"""A translated kernel as the machine needs it: plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.ptx.ast import Kernel

EXIT = -1
"""Pseudo block: the thread has left the kernel."""
BLOCKED = -2
SPLIT = -3
"""What a block function returns in place of the next block, EXIT being the third."""

BlockFunction = Callable[[Any, list[Value]], int]
"""Runs a basic block for a fragment with its registers; returns the next block, or EXIT, BLOCKED or SPLIT."""


@dataclass(frozen=True, eq=False)
class Code:
    """``functions[b]`` runs basic block ``b``, whose instructions are ``first[b]`` to ``last[b]``.

    families: histogram of each block's instructions by family, for the counters. live_in: registers that may be read at
    or after the start of each block. dtypes: of a register's array. initial: registers of a warp that starts.
    local_bytes: of a thread's frame. symbols: variables of the device that the kernel names. places: state space and
    offset in it of each variable and parameter, of global ones only the space. native: gives the plan of
    what can run natively, or None, for launches that are quiet or not; it is made when it is first asked for.
    instruction_at: for each line of the generated source, the instruction it belongs to.
    """

    kernel: Kernel
    filename: str
    source: str
    instruction_at: Sequence[int | None]
    sites: Sequence[Site]
    functions: Sequence[BlockFunction]
    first: Sequence[int]
    last: Sequence[int]
    families: Sequence[Counter[str]]
    live_in: Sequence[Sequence[int]]
    dtypes: Sequence[Any]
    initial: Sequence[Value]
    static_shared: int
    local_bytes: int
    symbols: Sequence[str]
    places: Mapping[str, tuple[str, int]]
    native: Callable[[bool], Any]
    uses_launch_control: bool
    between_clusters: str
    """The first instruction by which clusters may depend on one another, or nothing."""
