"""The errors that a user can cause or meet, each with an exit code of the command line."""

from __future__ import annotations

from importlib.util import find_spec

EXIT_OK = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_CANNOT_RUN = 3
EXIT_WRONG_RESULT = 4
EXIT_INCOMPLETE = 5
EXIT_INTERRUPTED = 130  # the shell's code for a program that Ctrl-C has ended; after SIGTERM, too
EXIT_CODES = {
    EXIT_OK: "ok or clean",
    EXIT_FINDINGS: "findings: racy, or a regression",
    EXIT_USAGE: "usage",
    EXIT_CANNOT_RUN: "could not run, or hung",
    EXIT_WRONG_RESULT: "wrong result",
    EXIT_INCOMPLETE: "incomplete",
    EXIT_INTERRUPTED: "interrupted",
}
"""The meaning of each exit code, in every command."""
EXIT_CODES_TEXT = f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}."


class ReportedError(Exception):
    """Base class. The user sees the message as it is."""

    exit_code = EXIT_CANNOT_RUN


class UsageProblem(ReportedError):
    """The request itself is wrong. One line names the value, the rule that it breaks and what to write instead."""

    exit_code = EXIT_USAGE


class CannotRun(ReportedError):
    """The request is valid but could not be carried out: no compiler, failed compilation, deadlock."""


EXTRAS = {"debug": ("textual",)}
"""The packages of each extra in emugpu/pyproject.toml."""


def needs(extra: str, packages: tuple[str, ...] | None = None, distribution: str = "emugpu") -> None:
    """Raises `CannotRun` with the command that installs an extra of a distribution, if one of its packages is missing.

    A command calls this before it does anything else, so that no work is lost.
    """
    missing = [package for package in packages or EXTRAS[extra] if find_spec(package) is None]
    if missing:
        raise CannotRun(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; install the extra: "
            f"pip install '{distribution}[{extra}]'"
        )
