"""The program ``harness``, or ``python -m harness``."""

import signal


def entry() -> None:
    """Runs the command line.

    Until a command is imported (`CommandGroup`), Ctrl-C and SIGTERM end the process at once and silently, because there
    is nothing to clean up.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from emugpu.cli.program import start_program

    start_program()
    from harness.cli.main import main

    main(prog_name="harness")


if __name__ == "__main__":
    entry()
