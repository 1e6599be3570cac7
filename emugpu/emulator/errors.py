"""What can go wrong when PTX is loaded or run, as exceptions with one clear message each."""

from __future__ import annotations

from emugpu.emulator.rules import RULES, Finding


class EmulatorError(Exception):
    """Base class of everything the emulator raises on purpose. ``output``: what a kernel had printed until then;
    ``warnings``: what had been found.
    """

    output = ""
    warnings: tuple[Finding, ...] = ()


class PtxSyntaxError(EmulatorError):
    """The PTX text cannot be parsed, or uses a directive, instruction or modifier that is not implemented."""


class LaunchError(EmulatorError):
    """The launch itself is wrong: unknown entry, grid, cluster, shared memory size or arguments."""


class Fault(EmulatorError):
    """The running program broke a rule of the machine; ``rule`` is its id in `emugpu.emulator.rules`.

    Units of the machine raise it with what happened; the machine adds kernel, PTX line, instruction, CTA and warp.
    ``offset``: the place in shared memory it is about, if any. ``position``: of an access with one address per lane,
    which of the addresses is wrong.
    """

    def __init__(
        self, message: str, rule: str = "operand", offset: int | None = None, position: int | None = None
    ) -> None:
        super().__init__(message)
        assert rule in RULES, rule
        self.rule, self.offset, self.position = rule, offset, position


class Deadlock(EmulatorError):
    """No warp can run and nothing asynchronous is in flight; the message says who waits for what."""


class Livelock(Deadlock):
    """Warps run, but only to poll what nobody will change any more; the message says who polls what."""


class LimitExceeded(EmulatorError):
    """The run took more steps or more seconds than it was allowed; the message says where its warps are."""
