"""What a command is to look at: launch files, folders of them, or a program with its arguments."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import click

from emugpu.driver.gpu_model import gpu_names
from emugpu.errors import UsageProblem

gpu_option = click.option(
    "--gpu", type=click.Choice(gpu_names()), default="b200", show_default=True, help="GPU that a program gets."
)


def is_program(words: Sequence[str], other: str = "") -> bool:
    """Returns whether the words are a program with its arguments, and not launch files or a folder. other: what else
    the command takes, for the message. Raises UsageProblem if the first word is nothing of the kind.
    """
    first = Path(words[0])
    if first.suffix == ".toml" or first.is_dir():
        return False
    if shutil.which(words[0]) is None:
        ways = {
            ".ptx": f"make a launch file of it: emugpu ptx init {first} -o {first.stem}.toml",
            ".py": f"name what runs it, too: -- python {first}",
            ".cu": "compile it first, to a program, or to PTX: nvcc -ptx",
        }
        raise UsageProblem(
            f"{words[0]!r} is no {other}LAUNCH.toml, no folder, and no program that can be started; "
            f"{ways.get(first.suffix, 'name one')}"
        )
    return True


def only_launch_file(words: Sequence[str | Path]) -> Path:
    """Returns the one launch file that is named."""
    if len(words) > 1:
        raise UsageProblem(f"{len(words)} launch files are named, {', '.join(map(str, words))}; name one")
    return Path(words[0])
