"""Short ways to write many forms of PTX instructions."""

from __future__ import annotations

import re
from itertools import product


def each(pattern: str, **choices: str) -> list[str]:
    """The pattern with every combination of the words of each choice; "-" is the empty word."""
    names = list(choices)
    sets = [["" if word == "-" else word for word in choices[name].split()] for name in names]
    return [pattern.format(**dict(zip(names, words, strict=True))) for words in product(*sets)]


def several(text: str) -> list[str]:
    """The statements of a text; ``%r0..%r3`` are four registers."""

    def registers(found: re.Match[str]) -> str:
        return ", ".join(f"%{found[1]}{n}" for n in range(int(found[2]), int(found[3]) + 1))

    whole = re.sub(r"%(\w)(\d+)\.\.%\w(\d+)", registers, " ".join(text.split()))
    return [f"{statement.strip()};" for statement in whole.split(";") if statement.strip()]


def vector(register: str, count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%{register}{first + n}" for n in range(count)) + "}"
