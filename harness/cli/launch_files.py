"""Launch files in the place of kernels: which are named, what is not for them, and the same commands under ``ptx``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from harness.build.catalog import KERNELS
from harness.build.options import OPTIONS
from harness.cli.options import NamedPath, given_options, launch_seed_option, launch_timeout_option
from harness.errors import UsageProblem

OF_KERNELS = (
    "shape",
    "preset",
    *OPTIONS,
    "ptx_file",
    "ptx",
    "inputs",
    "tuned",
    "what_if",
)
"""Parameters that say what a kernel is compiled to, and what it computes: a launch file says so itself."""


def launch_files_named(words: Sequence[str | Path]) -> list[Path]:
    """Returns the launch files among the words, which then are all of them: a name that ends in .toml, or that of a
    file.
    """
    files = [Path(word) for word in words if isinstance(word, Path) or _is_file(word)]
    if files and len(files) != len(words):
        kernels = ", ".join(str(word) for word in words if not isinstance(word, Path) and not _is_file(word))
        raise UsageProblem(f"{files[0]} is a launch file, and {kernels} none; name kernels or launch files, not both")
    return files


def _is_file(word: str) -> bool:
    return word.endswith(".toml") or (word not in (*KERNELS, "all") and Path(word).is_file())


def one_launch_file(words: Sequence[str | Path]) -> Path | None:
    """Returns the launch file that is named; None: kernels are."""
    files = launch_files_named(words)
    if len(files) > 1:
        raise UsageProblem(f"{len(files)} launch files are named, {', '.join(map(str, files))}; name one")
    return files[0] if files else None


def refuse_what_kernels_have(file: Path, *more: str) -> None:
    """Options that a launch file has no use for must not be ignored."""
    ignored = given_options(*OF_KERNELS, *more)
    if ignored:
        raise UsageProblem(f"{file} says itself what is launched; leave {', '.join(ignored)} out")


def for_launch_files(command: click.Command, text: str, without: Collection[str] = ()) -> click.Command:
    """Returns a command of ``harness ptx``: the same, with the options that launch files have. The seed of the
    schedules may be called --seed there, as no inputs are drawn. text: its help.
    """
    replaced: dict[str | None, click.Parameter] = {
        "timeout": _parameter(launch_timeout_option),
        "schedule_seed": _parameter(launch_seed_option),
    }
    left_out = (*OF_KERNELS, "kernels", *without)
    kept = [replaced.get(p.name, p) for p in command.params if p.name not in left_out]
    callback = command.callback
    assert callback is not None

    @wraps(callback)
    def with_defaults(**values: Any) -> Any:
        defaults = command.make_context(command.name, ["-"], resilient_parsing=True).params
        return callback(**{**defaults, **values})

    return click.Command(command.name, params=[_FILES, *kept], callback=with_defaults, help=text)


def _parameter(option: Any) -> click.Parameter:
    """The parameter that a decorator adds."""

    @option
    def command() -> None: ...

    parameter: click.Parameter = command.__click_params__[0]
    return parameter


_FILES = click.Argument(["kernels"], nargs=-1, required=True, metavar="LAUNCH.toml", type=NamedPath(path_type=Path))
