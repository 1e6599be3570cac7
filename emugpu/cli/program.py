"""The common parts of all programs of the command line: lazy commands, one clear line per error, and exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NoReturn, TextIO

import click

from emugpu.errors import (
    EXIT_CANNOT_RUN,
    EXIT_CODES_TEXT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    CannotRun,
    ReportedError,
)
from emugpu.paths import setting
from emugpu.processes.program import end_all, tree

INTERRUPTION = 1.5
"""Seconds after SIGTERM in which a command may end by itself."""
_program = "emugpu"
"""The name of the program in messages: the name of the group whose command runs."""
_owns_process = False
"""Whether this process has been set up for the command line (`start_program`)."""
_is_ending = threading.Lock()
"""Held from the moment on at which the last message is printed, so that there is only one."""


class ClearErrors(click.Command):
    """Turns each error of a command or a group of commands into one line and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        global _program
        _program = self.name or _program
        kwargs["standalone_mode"] = False
        code: Any
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = EXIT_USAGE
        except click.ClickException as error:
            code = print_error(_with_hint(error), EXIT_USAGE)
        except ReportedError as error:
            code = print_error(str(error), error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            _is_ending.acquire(blocking=False)
            code = print_error("interrupted", EXIT_INTERRUPTED)
        except MemoryError as error:
            code = print_error(f"not enough memory ({error}); use a smaller problem", EXIT_CANNOT_RUN)
        except OSError as error:
            code = print_error(explain_os_error(error), EXIT_CANNOT_RUN)
        except Exception as error:
            if setting("TRACEBACK"):
                raise
            what = f"{type(error).__name__}: {error}".replace("\n", " ")
            code = print_error(f"unexpected {what}; set EMUGPU_TRACEBACK=1 to see where", EXIT_CANNOT_RUN)
        for stream in (sys.stdout, sys.stderr):
            _give_up_if_broken(stream)
        sys.exit(code if isinstance(code, int) else EXIT_OK)


def _with_hint(error: click.ClickException) -> str:
    """Returns an error of Click as one line, with a hint to --help. Click names the valid values or a similar option,
    but not where all options are listed.
    """
    message = error.format_message().replace("\n", " ")
    says_it = isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter)
    meant = isinstance(error, click.NoSuchOption) and error.possibilities
    if says_it or meant or not isinstance(error, click.UsageError) or error.ctx is None:
        return message
    return f"{message.removesuffix('.')}; see {error.ctx.command_path} --help"


def print_error(message: str, code: int) -> int:
    """Prints an error on standard error. Returns the exit code."""
    _say(f"{_program}: error: {message}")
    return code


def warn(message: str) -> None:
    """Prints a warning on standard error."""
    _say(f"{_program}: warning: {message}")


def try_write(write: Callable[[], None]) -> bool:
    """Returns whether a finished result could be written; reports why not. The exit code of the result stays valid."""
    try:
        write()
    except CannotRun as error:
        print_error(str(error), error.exit_code)
    except OSError as error:
        print_error(explain_os_error(error), EXIT_CANNOT_RUN)
        _give_up_if_broken(sys.stdout)
    else:
        return True
    return False


def explain_os_error(error: OSError) -> str:
    """Returns one line that names what could not be used, and why."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"cannot use {os.fsdecode(error.filename)}: {reason}"
    return f"cannot write the output, or read an input: {reason}"


def prepare_streams() -> None:
    """Lets standard output and error accept every character: characters outside their encoding are written as
    ``\\u2026``.

    If standard output is closed (``>&-``), writing to it fails as on a full disk. A closed standard input is empty.
    Some terminals report a width of 0, which would cut everything off; it is ignored.
    """
    for name in ("COLUMNS", "LINES"):
        if os.environ.get(name, "").strip("0") == "":
            os.environ.pop(name, None)
    # Both are opened for reading, so that writing fails and is reported. No later file gets the stream's number.
    if sys.stdin is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    if sys.stdout is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _say(text: str) -> None:
    # If even this cannot be written, only the exit code reports the error.
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def _give_up_if_broken(stream: TextIO | None) -> None:
    """Drops the rest of a stream that cannot be written (a full disk), so that the program's end does not fail because
    of it.
    """
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            stream.flush()


class CommandGroup(ClearErrors, click.Group):
    """The commands of a program, each at a place ``module:name``.

    A command is imported when it is used, so that no command waits for the imports of others. The help of each ends
    with the exit codes, which are the same for all.
    """

    def __init__(self, *args: Any, places: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, epilog=EXIT_CODES_TEXT, **kwargs)
        self.places = dict(places or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        command.epilog = EXIT_CODES_TEXT
        if _owns_process and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            _end_at_sigterm()
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as `entry` left it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return command


def _end_at_sigterm() -> None:
    """Makes SIGTERM end the command as Ctrl-C does, and within two seconds.

    A thread is told of the signal at once, whatever the main thread does (signal.set_wakeup_fd).
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_anyway, args=(reader,), daemon=True).start()


def _interrupt(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_anyway(signals: int) -> None:
    """Ends the process if it does not end by itself after SIGTERM: it may wait for a GPU, or be in a long call."""
    while signal.SIGTERM not in os.read(signals, 4096):
        pass
    time.sleep(INTERRUPTION)
    end_all(tree(os.getpid())[1:])
    if _is_ending.acquire(blocking=False):
        print_error("interrupted", EXIT_INTERRUPTED)
    os._exit(EXIT_INTERRUPTED)


def start_logging(logger: str) -> None:
    """Logs to standard error what is compiled, run and started, by the emulated GPU and by this logger."""
    import logging

    logging.basicConfig(format="%(relativeCreated)6d ms %(name)s: %(message)s")
    for name in {"emugpu", logger}:
        logging.getLogger(name).setLevel(logging.DEBUG)


def start_program() -> None:
    """Sets up a process for the command line. A closed pipe (``emugpu ptx list FILE | head -1``) ends it, as usual."""
    global _owns_process
    _owns_process = True
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    prepare_streams()
