"""Tells apart what a command may be given: launch files, folders of them, or a program with its arguments."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import click

from emugpu.driver.gpu_model import gpu_names
from emugpu.errors import UsageProblem

gpu_option = click.option(
    "--gpu", type=click.Choice(gpu_names()), default="b200", show_default=True, help="GPU that the program sees."
)


def is_program(words: Sequence[str], other: str = "") -> bool:
    """Returns whether the words are a program with its arguments instead of launch files or a folder.

    ``other`` names what else the command accepts, for the message. Raises UsageProblem if the first word is none of
    these.
    """
    first = Path(words[0])
    if first.suffix == ".toml" or first.is_dir():
        return False
    if shutil.which(words[0]) is None:
        ways = {
            ".ptx": f"make a launch file for it: emugpu ptx init {first} -o {first.stem}.toml",
            ".py": f"name its interpreter, too: -- python {first}",
            ".cu": "compile it to a program or to PTX first: nvcc -ptx",
        }
        raise UsageProblem(
            f"{words[0]!r} is not {other}a launch file, a folder, or a program that can be started; "
            f"{ways.get(first.suffix, 'name one')}"
        )
    return True


def only_launch_file(words: Sequence[str | Path]) -> Path:
    """Returns the one launch file that is named."""
    if len(words) > 1:
        raise UsageProblem(f"{len(words)} names are given, {', '.join(map(str, words))}; name one launch file")
    return Path(words[0])
