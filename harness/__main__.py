"""The program: ``harness``, or ``python -m harness``."""

import signal


def entry() -> None:
    """Runs the command line. A reader that goes away (``harness list | head -1``) ends it, as usual.

    Ctrl-C ends it at once and without a word, as the shell would, until its command is imported: that takes half a
    second, in which there is nothing to put in order. `harness.cli.main.Commands` changes that.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from harness.cli.main import main, prepare_streams

    prepare_streams()
    main(prog_name="harness")


if __name__ == "__main__":
    entry()
