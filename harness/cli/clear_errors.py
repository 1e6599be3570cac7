"""Turns every problem of a command into one clear message and the right exit code, never a traceback."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from harness.errors import EXIT_CANNOT_RUN, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, HarnessError


class ClearErrors(click.Command):
    """Mixed into the class of a command or of a group of commands."""

    def main(self, *args, **kwargs) -> NoReturn:  # type: ignore[override]
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = EXIT_USAGE
        except click.ClickException as error:
            code = complain(error.format_message().replace("\n", " "), EXIT_USAGE)
        except HarnessError as error:
            code = complain(str(error), error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            code = complain("interrupted", EXIT_INTERRUPTED)
        except MemoryError as error:
            code = complain(f"out of memory ({error}); use a smaller --shape", EXIT_CANNOT_RUN)
        except Exception as error:
            if os.environ.get("HARNESS_TRACEBACK"):
                raise
            what = f"{type(error).__name__}: {error}".replace("\n", " ")
            code = complain(f"unexpected {what}; set HARNESS_TRACEBACK=1 to see where", EXIT_CANNOT_RUN)
        sys.exit(code if isinstance(code, int) else EXIT_OK)


def complain(message: str, code: int) -> int:
    """Says on standard error what is wrong; returns the exit code."""
    click.echo(f"harness: error: {message}", err=True)
    return code
