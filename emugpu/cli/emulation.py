"""The options of emulation: ``--schedules``, ``--emulate``, ``--jobs`` and ``--timeout``. They mean the same in every
command.

A command that emulates gets them as one argument, and names the settings of ``--emulate`` that it accepts:

    @click.command()
    @emulation_options("accumulation", "max-steps", "strict", strict=False)
    def run(emulation: Emulation) -> int:
        run_schedules(what, emulation.options, emulation.schedules)  # or check([what], emulation.check_options())

`Emulation.refuse_on_gpu` refuses options that a GPU would ignore.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, cast, get_args

import click

from emugpu.cli.options import Command, FiniteRange, Parsed, given_options, group
from emugpu.emulator.memory.unwritten import Uninitialised
from emugpu.emulator.native.library import Engine
from emugpu.emulator.rules import WARNINGS
from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions
from emugpu.launch.launching import LARGEST_SEED, STRICT, Accumulation, EmulationOptions, Schedule

MOST_SCHEDULES = 10_000
GPU_SILENCE = 60.0
"""Seconds without progress after which a GPU run is given up, unless ``--timeout`` is given."""


@dataclass(frozen=True)
class Schedules:
    """The value of ``--schedules``. With a ``count`` of 1 the named schedule runs; more are fifo and random ones.

    ``seed`` is the seed of the random schedule, or of the first of several, or None for the command's default.
    """

    count: int = 1
    schedule: Schedule = "fifo"
    seed: int | None = None


def parse_schedules(text: str) -> Schedules:
    """Reads ``fifo``, ``declining``, ``reversed``, ``random:SEED``, ``N`` or ``N@SEED``."""
    if text in ("fifo", "declining", "reversed"):
        return Schedules(schedule=cast(Schedule, text))
    word, mark, seed = text.partition(":" if text.startswith("random") else "@")
    if word == "random" and not mark:
        raise UsageProblem(f"--schedules {text}: a random schedule needs a seed, which repeats it; write random:7")
    if mark and not _is_number(seed, 0, LARGEST_SEED - MOST_SCHEDULES):
        raise UsageProblem(
            f"--schedules {text}: the seed {seed!r} is not a whole number from 0 to {LARGEST_SEED - MOST_SCHEDULES}"
        )
    start = int(seed) if mark else None
    if word == "random":
        return Schedules(schedule="random", seed=start)
    if not _is_number(word, 1, MOST_SCHEDULES):
        raise UsageProblem(
            f"--schedules {text}: write fifo, declining, reversed, random:SEED, or a number of schedules, "
            f"1 to {MOST_SCHEDULES} (fifo and random ones), with @SEED for the first seed: 10@7"
        )
    return Schedules(int(word), seed=start)


def _is_number(text: str, least: int, most: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 12 and least <= int(text) <= most


@dataclass(frozen=True)
class Setting:
    """A NAME of ``--emulate``. ``values`` lists its values with the default first, or describes them. ``read`` converts
    a text to a value, or returns None if the text is invalid.
    """

    values: tuple[str, ...]
    read: Callable[[str], Any]


def _choice(*values: str) -> Setting:
    return Setting(values, lambda text: text if text in values else None)


_COUNT = Setting(("N",), lambda text: int(text) if _is_number(text, 1, 10**11) else None)
_SWITCH = Setting(("true", "false"), {"true": True, "false": False}.get)
SETTINGS = {
    "accumulation": _choice(*get_args(Accumulation)),
    "resident-clusters": _COUNT,
    "max-steps": _COUNT,
    "uninitialised": _choice(*get_args(Uninitialised)),
    "engine": _choice(*get_args(Engine)),
    "strict": _SWITCH,
    "allow": Setting(("RULE",), str),
    "ptxas": _SWITCH,
}
"""The settings of ``--emulate``: fields of `EmulationOptions`, and whether PTX that ptxas refuses is an error. Each may
be given once, ``allow`` many times.
"""


def parse_setting(text: str, offered: Sequence[str], rules: Sequence[str] = WARNINGS) -> tuple[str, Any]:
    """Reads NAME=VALUE, where NAME is one of ``offered``, and the value of ``allow`` is one of ``rules``."""
    name, mark, value = text.partition("=")
    if name not in offered:
        raise UsageProblem(
            f"--emulate {text}: write NAME=VALUE, with one of the names of this command: {', '.join(offered)}"
        )
    found = SETTINGS[name].read(value) if mark else None
    if name == "allow" and found not in rules:
        nearest = ", ".join(get_close_matches(value, rules, cutoff=0))
        raise UsageProblem(f"--emulate {text}: allow is a rule; the nearest are {nearest}")
    if found is None:
        allowed = {"N": "a whole number of at least 1"}
        choices = " or ".join(SETTINGS[name].values)
        raise UsageProblem(f"--emulate {text}: {name} is {allowed.get(choices, choices)}")
    return name, found


@dataclass(frozen=True)
class Emulation:
    """The values of the options of this module.

    ``options`` holds the schedule if there is one, otherwise the seed of the first random one. ``schedules`` is their
    number. ``ptxas`` says whether PTX that ptxas refuses is an error. ``given`` lists the settings of ``--emulate`` on
    the command line.
    """

    options: EmulationOptions = STRICT
    schedules: int = 1
    ptxas: bool = True
    given: frozenset[str] = frozenset()

    def check_options(self, redundant: bool = False) -> CheckOptions:
        """Returns the options of a check."""
        return CheckOptions(self.schedules, self.options, redundant, self.options.strict, self.options.allow)

    def for_program(self) -> EmulationOptions:
        """Returns the options for a program. Correct programs may read uninitialised memory, as long as they do not use
        the values.
        """
        is_given = "uninitialised" in self.given
        return self.options if is_given else replace(self.options, uninitialised="report")

    def refuse_several_schedules(self, why: str) -> None:
        if self.schedules > 1 and given_options("schedules"):
            raise UsageProblem(f"--schedules {self.schedules}: {why}; write fifo, declining, reversed or random:SEED")

    def refuse(self, why: str, *settings: str) -> None:
        """Refuses given settings that do not apply."""
        ignored = [f"--emulate {name}" for name in settings if name in self.given]
        if ignored:
            raise UsageProblem(f"{', '.join(ignored)}: {why}; leave {'it' if len(ignored) == 1 else 'them'} out")

    def refuse_on_gpu(self) -> None:
        """Refuses options that only the emulator uses, if a GPU runs the kernel."""
        given = [*given_options("schedules"), *(f"--emulate {name}" for name in sorted(self.given - {"ptxas"}))]
        if given:
            raise UsageProblem(f"{', '.join(given)}: only the emulator uses it; leave it out, or add --device emulator")


def timeout_option(gpu: bool, default: float | None) -> Callable[[Command], Command]:
    of_gpu, also = (", or a GPU that gives no sign", f"; {GPU_SILENCE:g} on a GPU") if gpu else ("", "")
    shown = "no limit" if default is None else f"{default:g}"
    return click.option(
        "--timeout",
        type=FiniteRange(0, min_open=True),
        default=default,
        metavar="SECONDS",
        help=f"End a launch if none of its clusters ends for so long{of_gpu}.  [default: {shown}{also}]",
    )


def jobs_option(what: str = "Worker processes.") -> Callable[[Command], Command]:
    return click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, metavar="N", help=what)


def emulation_options(
    *names: str,
    schedules: str = "1",
    first_seed: int = 0,
    rules: Sequence[str] = WARNINGS,
    jobs: bool = True,
    timeout: bool = True,
    silence: float | None = None,
    gpu: bool = False,
    several: bool = True,
    **defaults: Any,
) -> Callable[[Command], Command]:
    """Returns the decorator that gives a command an `Emulation`.

    ``names`` are the settings that the command accepts. ``schedules`` and ``first_seed`` are its defaults. ``rules``
    are those that ``allow`` accepts: a command that only runs has no others than the warnings of the emulator. ``jobs``
    and ``timeout`` say whether it has these options, ``silence`` is the default of ``timeout``, ``gpu`` says whether a
    GPU can run instead, and ``several`` whether several schedules can run. ``defaults`` replaces defaults of fields of
    `EmulationOptions`.
    """

    def gathered(
        schedules: Schedules, emulate: tuple[tuple[str, Any], ...], timeout: float | None = None, jobs: int = 1
    ) -> Emulation:
        values: dict[str, Any] = {}
        for name, value in emulate:
            if name in values and name != "allow":
                raise UsageProblem(f"--emulate {name} is given twice; give it once")
            values[name] = (*values.get(name, ()), value) if name == "allow" else value
        given = frozenset(values)
        ptxas = values.pop("ptxas", True)
        fields = {**defaults, **{name.replace("-", "_"): value for name, value in values.items()}}
        seed = first_seed if schedules.seed is None else schedules.seed
        options = EmulationOptions(schedule=schedules.schedule, seed=seed, jobs=jobs, timeout=timeout, **fields)
        draws = "random" in (options.schedule, options.uninitialised) or schedules.count > 1
        if schedules.seed is not None and not draws:
            raise UsageProblem(
                f"--schedules 1@{seed}: the only schedule is fifo, which uses no seed; write random:{seed}"
            )
        return Emulation(options, schedules.count, ptxas, given)

    decorators: list[Callable[[Command], Command]] = [click.option(
        "--schedules",
        type=Parsed("SCHEDULES", parse_schedules),
        default=schedules if several else "fifo",
        show_default=True,
        metavar="SCHEDULES",
        help="fifo, declining, reversed, random:SEED, or a number: 10 or 10@SEED gives fifo and random ones."
        if several
        else "fifo, declining, reversed or random:SEED.",
    ), click.option(
        "--emulate",
        multiple=True,
        type=Parsed("NAME=VALUE", lambda text: parse_setting(text, names, rules)),
        metavar="NAME=VALUE",
        help=f"Set {'; '.join(_written(name, defaults) for name in names)}. The first value is the default.",
    )]  # fmt: skip
    decorators += [jobs_option()] if jobs else []
    return group("emulation", gathered, *decorators, *([timeout_option(gpu, silence)] if timeout else []))


def _written(name: str, defaults: dict[str, Any]) -> str:
    """Returns a setting and its values, the default first."""
    default = defaults.get(name)
    first = {True: "true", False: "false"}.get(default, default) if default is not None else None
    values = sorted(SETTINGS[name].values, key=lambda value: value != first) if first else SETTINGS[name].values
    return f"{name}={'|'.join(values)}"


def emulation_words(
    emulation: Emulation, *, schedules: str = "1", first_seed: int = 0, silence: float | None = None, **defaults: Any
) -> list[str]:
    """Returns the words of a command line for these options without its defaults: the reverse of `emulation_options`,
    with the same defaults.

    The number of worker processes is left out, because it changes no result.
    """
    options = emulation.options
    asked = _schedules_text(emulation, first_seed)
    words = [] if asked == schedules else ["--schedules", asked]
    usual = EmulationOptions(**defaults)
    for name in ("accumulation", "resident-clusters", "max-steps", "uninitialised", "engine", "strict"):
        value = getattr(options, name.replace("-", "_"))
        if value != getattr(usual, name.replace("-", "_")):
            words += ["--emulate", f"{name}={str(value).lower()}"]
    words += [word for rule in options.allow for word in ("--emulate", f"allow={rule}")]
    words += [] if emulation.ptxas else ["--emulate", "ptxas=false"]
    return words if options.timeout in (None, silence) else [*words, "--timeout", f"{options.timeout:g}"]


def _schedules_text(emulation: Emulation, first_seed: int) -> str:
    schedule, seed = emulation.options.schedule, emulation.options.seed
    if emulation.schedules == 1 and schedule != "fifo":
        return f"random:{seed}" if schedule == "random" else schedule
    draws = emulation.schedules > 1 or emulation.options.uninitialised == "random"
    return f"{emulation.schedules}@{seed}" if draws and seed != first_seed else str(emulation.schedules)
