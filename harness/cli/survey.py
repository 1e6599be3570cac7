"""``harness survey``: characterizes a GPU. The work is done by `metrology`, which only a checkout and a bundle have."""

from __future__ import annotations

import click

from harness.errors import CannotRun

try:
    from metrology.survey.command import survey_command
except ModuleNotFoundError as missing:
    if missing.name != "metrology":
        raise

    @click.command("survey", context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def survey_command(words: tuple[str, ...]) -> None:
        """Characterize a GPU, or read the archive of one. Needs a checkout of the project."""
        raise CannotRun("survey is not in the installed package; run it from a checkout, or from a bundle's run.sh")


__all__ = ["survey_command"]
