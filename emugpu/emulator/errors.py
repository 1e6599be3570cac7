"""The errors of loading and running PTX, as exceptions with one clear message each."""

from __future__ import annotations

from collections.abc import Mapping

from emugpu.emulator.rules import RULES, RuleWarning


class EmulatorError(Exception):
    """Base class of every exception that the emulator raises on purpose.

    ``output``: the text that a kernel had printed until then. ``warnings``: the findings until then.
    """

    output = ""
    warnings: tuple[RuleWarning, ...] = ()


class PtxSyntaxError(EmulatorError):
    """The PTX text cannot be parsed, or uses a directive, instruction or modifier that is not implemented."""


class LaunchError(EmulatorError):
    """The launch itself is wrong: unknown entry, grid, cluster, shared memory size or arguments."""


class Fault(EmulatorError):
    """The running program broke a rule of the machine. ``rule``: the rule's id in `emugpu.emulator.rules`.

    A unit of the machine raises it with what happened; the machine adds kernel, PTX line, instruction, CTA and warp.
    ``offset``: the place in shared memory that it concerns, if any. ``position``: for an access with one address per
    lane, the index of the wrong address.
    """

    def __init__(
        self, message: str, rule: str = "operand", offset: int | None = None, position: int | None = None
    ) -> None:
        super().__init__(message)
        assert rule in RULES, rule
        self.rule, self.offset, self.position = rule, offset, position


class UndefinedRead(Fault):
    """A read of memory that was never written, or where a thread has stored an undefined value.

    ``place``: the first such byte, as an offset in shared memory or as an address. ``store``: the store, or "".
    ``origin``: where the value comes from that it stored, or "".
    """

    def __init__(self, message: str, place: int, store: str, origin: str, offset: int | None = None) -> None:
        super().__init__(message, "uninitialised", offset)
        self.place, self.store, self.origin = place, store, origin


OF_INSTRUCTIONS = (Fault, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What executing an instruction may raise by itself. Any other exception comes from outside: from a signal handler."""


class Deadlock(EmulatorError):
    """No warp can run and nothing asynchronous is in flight. The message says which warp waits for what.

    ``missing`` says of mbarriers, by cluster, CTA rank and offset, who has not arrived.
    """

    def __init__(self, message: str, missing: Mapping[tuple[int, int, int], str] | None = None) -> None:
        super().__init__(message)
        self.missing = dict(missing or {})


class Livelock(Deadlock):
    """Warps run, but only poll values that nothing will change any more. The message says which warp polls what."""


class LimitExceeded(EmulatorError):
    """The run took more steps or more seconds than allowed. The message says where its warps are."""


class Interrupted(EmulatorError):
    """The user has ended the run."""
