"""``python -m harness.ptx.corpus DIR``."""

import sys

from harness.cli.main import main

main(["ptx", "corpus", *sys.argv[1:]], prog_name="harness")
