"""What is said of a configuration that cannot be: the value, the rule, and ways out that were tried and work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Any

from harness.build.catalog import KERNELS
from harness.build.options import OPTIONS
from harness.errors import UsageProblem

Change = Mapping[str, Any]
"""Options to be set otherwise; None: to be left out."""
SHOWN = 2


class Refusal(UsageProblem):
    """A rule that a configuration breaks. subject: the option it is about. instead: others that can be set otherwise in
    its place.
    """

    def __init__(self, message: str, subject: str, instead: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.subject = subject
        self.instead = tuple(instead)


def advise(refusal: Refusal, asked: Change, works: Callable[[Change], bool]) -> UsageProblem:
    """The refusal with the ways out that work with all else that is asked for.

    Where none does, as there is more wrong, the fewest options are named that are best left out.
    """

    def works_with(changes: Iterable[Change], most: int) -> list[Change]:
        return list(islice((change for change in changes if works({**asked, **change})), most))

    own, out = _settings(refusal.subject, asked), {refusal.subject: None}
    instead = [way for name in refusal.instead for way in works_with(_settings(name, asked), 1)]
    if "kernel" in refusal.instead:  # it is the kernel that cannot do it
        ways = [*instead, *works_with([out], 1)]
    else:
        several = SHOWN if not _bound(refusal.subject) else 1
        found = works_with(own, several)
        ways = [*(found[:1] or works_with([out], 1)), *instead, *found[1:]]
    ways = ways[:SHOWN]
    if not ways:
        others = [name for name in asked if name not in ("kernel", refusal.subject) and asked[name] is not None]
        subsets = (subset for size in range(len(others) + 1) for subset in combinations(others, size))
        without: Iterator[Change] = (dict.fromkeys((refusal.subject, *subset)) for subset in subsets)
        ways = list(islice((change for change in without if works({**asked, **change})), 1))
    return UsageProblem(f"{refusal}; {_in_words(ways, refusal.subject)}" if ways else str(refusal))


def _settings(name: str, asked: Change) -> list[Change]:
    """An option set to what is offered, as near as can be to what was asked for; left out, if nothing is."""
    wanted = asked.get(name)
    offered = tuple(KERNELS) if name == "kernel" else OPTIONS[name].offered or (None,)
    values: list[Any] = [value for value in offered if value != wanted]
    distance = None if name == "kernel" else OPTIONS[name].distance
    if wanted is not None and distance is not None:
        values.sort(key=lambda value: distance(value, wanted))
    return [{name: value} for value in values]


def _in_words(ways: list[Change], subject: str) -> str:
    """``use 128x64, or cta group 1``, ``use 1 or 2``, ``use static, or leave sms out``."""
    values = [_value(way, subject) for way in ways if None not in way.values()]
    alike = all(set(way) == set(ways[0]) for way in ways)
    words = [f"use {(' or ' if alike else ', or ').join(values)}"] if values else []
    words += [f"leave {' and '.join(map(_name, way))} out" for way in ways if None in way.values()]
    return ", or ".join(words)


def _value(change: Change, subject: str) -> str:
    return " and ".join(_setting(name, value, subject) for name, value in change.items())


def _setting(name: str, value: object, subject: str) -> str:
    if value is False:
        return f"no {_name(name)}"
    if name == subject and _bound(name) and (name, value) != _LEAST:
        return _bound(name).format(value)
    shown = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return shown if name in (subject, "kernel") else f"{_name(name)} {shown}"


_LEAST = ("stages", 1)
"""There is no less, so nobody is told to use at most that."""


def _name(option: str) -> str:
    return option.replace("_", " ")


def _bound(option: str) -> str:
    return "" if option == "kernel" else OPTIONS[option].bound
