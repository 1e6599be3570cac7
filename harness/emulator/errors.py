"""What can go wrong when PTX is loaded or run, as exceptions with one clear message each."""

from __future__ import annotations


class EmulatorError(Exception):
    """Base class of everything the emulator raises on purpose."""


class PtxSyntaxError(EmulatorError):
    """The PTX text cannot be parsed, or uses a directive, instruction or modifier that is not implemented."""


class LaunchError(EmulatorError):
    """The launch itself is wrong: unknown entry, grid, cluster, shared memory size or arguments."""


class Fault(EmulatorError):
    """The running program broke a rule of the machine.

    Units of the machine raise it with what happened; the machine adds kernel, PTX line, instruction, CTA and warp.
    """


class Deadlock(EmulatorError):
    """No warp can run and nothing asynchronous is under way; the message says who waits for what."""
