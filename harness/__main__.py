"""The program: ``harness``, or ``python -m harness``."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def entry() -> None:
    """Runs the command line. A reader that goes away (``harness list | head -1``) ends it, as usual."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with _ended_by_interrupts():
        from harness.cli.main import main, prepare_streams
    prepare_streams()
    main(prog_name="harness")


@contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Ctrl-C ends the program at once and without a word, as the shell would: importing NumPy and the rest takes half a
    second, in which there is nothing to put in order, and nobody yet to catch a KeyboardInterrupt.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    entry()
