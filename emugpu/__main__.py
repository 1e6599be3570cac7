"""The program: ``emugpu``, or ``python -m emugpu``."""

from emugpu.cli.program import start_program


def entry() -> None:
    """Runs the command line."""
    start_program()
    from emugpu.cli.main import main

    main(prog_name="emugpu")


if __name__ == "__main__":
    entry()
