"""The errors a user can cause or meet, each with the exit code of the command line."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_CANNOT_RUN = 3
EXIT_WRONG_RESULT = 4
EXIT_INTERRUPTED = 130  # the shell's code for a program ended by Ctrl-C


class HarnessError(Exception):
    """Base class; the message is shown to the user as it is."""

    exit_code = EXIT_CANNOT_RUN


class UsageProblem(HarnessError):
    """The request itself is wrong. One line: the value, the rule it breaks and what to write instead."""

    exit_code = EXIT_USAGE


class CannotRun(HarnessError):
    """The request is fine but could not be carried out: no compiler, failed compilation, deadlock."""
