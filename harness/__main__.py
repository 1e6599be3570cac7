"""``python -m harness`` is the same as ``harness``."""

from harness.cli import main

if __name__ == "__main__":
    main(prog_name="harness")
