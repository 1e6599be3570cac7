"""Numbers of the native engine's operations that exchange data between lanes, access memory, or control a piece.

The interpreter has these written by hand in `interpreter/`; those on single lanes are in `instructions.operations`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag, auto

EXCHANGES = {
    name: 800 + number
    for number, name in enumerate(
        [*(f"shfl.{m}" for m in ("idx", "up", "down", "bfly")), *(f"vote.{m}" for m in ("all", "any", "uni", "ballot"))]
        + [f"redux.{m}" for m in ("add", "and", "or", "xor", "min.u32", "max.u32", "min.s32", "max.s32")]
        + [f"redux.{m}{n}.f32" for m in ("min", "max") for n in ("", ".nan")]
        + ["elect", "activemask"]
    )
}
"""Numbers of the operations that exchange data between the lanes of a warp. Their last source is the mask of the
participating lanes; which lanes are there does not depend on it.
"""


MATRICES = {"tcgen05.ld": 990, "stmatrix": 991, "stmatrix.trans": 992, "tcgen05.st": 993, "tcgen05.wait::st": 994}
"""Numbers of operations of whole warps: a register of a load from tensor memory or of a store to it, the wait for such
stores, and the store of one matrix.
"""
WAIT_FOR_LOADS = "tcgen05.wait::ld"
"""The micro-operation of the wait for loads from tensor memory, which have their values at once."""


class Control(IntEnum):
    """Numbers of operations that are not on lanes: they begin, link and end native pieces."""

    BEGIN = 1000
    """Begins a native piece: saves the rows that a rollback needs."""
    GO = 1001
    BRANCH = 1002
    LEAVE = 1003
    """The block continues with an instruction that Python runs."""
    BARRIER = 1004
    LOADED = 1005
    """No load from tensor memory is pending that only Python knows; if aligned, the warp is whole."""
    EARLY_READ = 1006
    """Counts a read of a register of a load from tensor memory before its wait. Python does the first one."""
    CALL = 1007
    """Python executes an instruction on the rows, without being handed anything."""


class Flag(IntFlag):
    """How an operation is to be executed."""

    NEGATED = auto()
    """The guard holds where its predicate is false."""
    WIDE = auto()
    """The destination, or the value that is stored, has 64 bits per lane."""
    WIDE_ADDRESS = auto()
    FIRST_ITEM = auto()
    """It is the first micro-operation of its instruction's access."""
    CHOOSES = auto()
    """See `MicroOperation.chooses`."""
    ALIGNED = auto()
    """All lanes of the warp must execute it together."""
    COUNTED = auto()
    """The barrier has a number of threads."""
    SPREADS = auto()
    """See `MicroOperation.spreads`."""
    STRONG = auto()
    """See `Micro.strong`."""


BARRIER = "bar.sync"
"""The micro-operation of a barrier. Its sources are the barrier's number and, if given, the number of threads. An
alignment of 32 means that all lanes of the warp must arrive together.
"""


SPACES = ("shared", "global", "param", "const", "local", "generic")
ACCESS_BYTES = (1, 2, 4, 8)
ACCESSES: dict[tuple[str, str, int], int] = {
    (verb, space, nbytes): 900 + number
    for number, (verb, space, nbytes) in enumerate(
        (verb, space, nbytes) for verb in ("ld", "st") for space in SPACES for nbytes in ACCESS_BYTES
    )
    if (verb, space) not in (("st", "param"), ("st", "const"))
}
"""Numbers of loads and stores, by direction, state space and bytes of an item."""


ATOMICS = (
    "add", "and", "or", "xor", "exch", "cas", "inc", "dec", "min.u", "max.u", "min.s", "max.s", "add.f",
)  # fmt: skip
"""Atomic operations on memory, one lane after another, numbered in this order."""
ATOMIC_ACCESSES = {
    (space, nbytes): 960 + number
    for number, (space, nbytes) in enumerate(
        (space, nbytes) for space in ("shared", "global", "generic") for nbytes in (4, 8)
    )
}
"""Numbers of atomics, by state space and bytes."""
