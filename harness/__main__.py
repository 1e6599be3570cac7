"""The program ``harness``, or ``python -m harness``."""

from emugpu.cli.program import start_program


def entry() -> None:
    """Runs the command line."""
    start_program()
    from harness.cli.main import main

    main(prog_name="harness")


if __name__ == "__main__":
    entry()
