"""The program: ``harness``, or ``python -m harness``."""

import signal

from harness.cli.clear_errors import speak_any_encoding
from harness.cli.main import main


def entry() -> None:
    """Runs the command line. A reader that goes away (``harness list | head -1``) ends it, as usual."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    speak_any_encoding()
    main(prog_name="harness")


if __name__ == "__main__":
    entry()
