"""Checks for the optional packages that some commands of the lab need."""

from __future__ import annotations

from emugpu import errors

EXTRAS = {"bench": ("scipy",), "report": ("matplotlib", "jinja2", "scipy"), "sweep": ("distributed",)}
"""The packages of each extra of pyproject.toml."""


def needs(extra: str) -> None:
    """Raises `CannotRun` with the command that installs an extra, if one of its packages is missing."""
    errors.needs(extra, EXTRAS[extra], "blackwell-matmul-lab")
