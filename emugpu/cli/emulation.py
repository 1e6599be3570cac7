"""How something is emulated: ``--schedules``, ``--emulate``, ``--jobs`` and ``--timeout``, which mean the same in every
command.

A command that emulates takes them as one argument, and says which settings of ``--emulate`` it has a use for:

    @click.command()
    @emulation_options("accumulation", "max-steps", "strict", strict=False)
    def run(emulation: Emulation) -> int:
        run_schedules(what, emulation.options, emulation.schedules)  # or check([what], emulation.check_options())

What a GPU would not heed is refused with `Emulation.refuse_on_gpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import click

from emugpu.check.findings import RULES
from emugpu.cli.options import Command, FiniteRange, Parsed, given_options, group
from emugpu.emulator.memory.unwritten import Uninitialised
from emugpu.emulator.native.library import Engine
from emugpu.emulator.rules import WARNINGS
from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions
from emugpu.launch.launching import LARGEST_SEED, STRICT, Accumulation, EmulationOptions, Schedule

MOST_SCHEDULES = 10_000
GPU_SILENCE = 60.0
"""Seconds that a GPU may show no progress, where ``--timeout`` does not say."""


@dataclass(frozen=True)
class Schedules:
    """The value of ``--schedules``. count: 1 is the schedule that is named; more are fifo and random ones. seed: of the
    random schedule, and of several that of the first; None: the command's.
    """

    count: int = 1
    schedule: Schedule = "fifo"
    seed: int | None = None


def parse_schedules(text: str) -> Schedules:
    """Reads ``fifo``, ``declining``, ``random``, ``random:SEED``, ``N`` or ``N@SEED``."""
    if text in ("fifo", "declining"):
        return Schedules(schedule="fifo" if text == "fifo" else "declining")
    word, mark, seed = text.partition(":" if text.startswith("random") else "@")
    if mark and not _is_number(seed, 0, LARGEST_SEED - MOST_SCHEDULES):
        raise UsageProblem(
            f"--schedules {text}: the seed {seed!r} is not a whole number from 0 to {LARGEST_SEED - MOST_SCHEDULES}"
        )
    start = int(seed) if mark else None
    if word == "random":
        return Schedules(schedule="random", seed=start)
    if not _is_number(word, 1, MOST_SCHEDULES):
        raise UsageProblem(
            f"--schedules {text}: write fifo, declining, random:SEED, or a number of schedules, 1 to {MOST_SCHEDULES} "
            "(fifo and random ones), with @SEED for the first seed: 10@7"
        )
    return Schedules(int(word), seed=start)


def _is_number(text: str, least: int, most: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 12 and least <= int(text) <= most


@dataclass(frozen=True)
class Setting:
    """One NAME of ``--emulate``. values: what it may be, the first one by default, or how that is written. read: the
    value that a text stands for; None: it is no such value.
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
    "allow": Setting(("RULE",), lambda text: text if text in {*WARNINGS, *RULES} else None),
    "ptxas": _SWITCH,
}
"""What ``--emulate`` sets: fields of `EmulationOptions`, and whether PTX that ptxas refuses is an error. Each may be
given once, ``allow`` many times.
"""


def parse_setting(text: str, offered: Sequence[str]) -> tuple[str, Any]:
    """Reads NAME=VALUE, with one of the names that are offered."""
    name, mark, value = text.partition("=")
    if name not in offered:
        raise UsageProblem(f"--emulate {text}: no NAME=VALUE with a name that this command knows: {', '.join(offered)}")
    found = SETTINGS[name].read(value) if mark else None
    if found is None:
        allowed = {"N": "a whole number of at least 1", "RULE": f"a rule, one of {', '.join(WARNINGS)}"}
        choices = " or ".join(SETTINGS[name].values)
        raise UsageProblem(f"--emulate {text}: {name} is {allowed.get(choices, choices)}")
    return name, found


@dataclass(frozen=True)
class Emulation:
    """What the options of this module say. options: with the schedule if it is one, else with the seed of the first
    random one. schedules: how many. ptxas: whether PTX that ptxas refuses is an error. given: the settings of
    ``--emulate`` that were given.
    """

    options: EmulationOptions = STRICT
    schedules: int = 1
    ptxas: bool = True
    given: frozenset[str] = frozenset()

    def check_options(self, redundant: bool = False) -> CheckOptions:
        """Returns how to run a check."""
        return CheckOptions(self.schedules, self.options, redundant, self.options.strict, self.options.allow)

    def for_program(self) -> EmulationOptions:
        """Returns the options for a program: those that run well read memory that nobody has written, and do not use
        what they get.
        """
        said = "uninitialised" in self.given
        return self.options if said else replace(self.options, uninitialised="report")

    def refuse_several_schedules(self, why: str) -> None:
        if self.schedules > 1 and given_options("schedules"):
            raise UsageProblem(f"--schedules {self.schedules}: {why}; write fifo, declining or random:SEED")

    def refuse(self, why: str, *settings: str) -> None:
        """Refuses settings that were given and mean nothing here."""
        ignored = [f"--emulate {name}" for name in settings if name in self.given]
        if ignored:
            raise UsageProblem(f"{', '.join(ignored)}: {why}; leave {'it' if len(ignored) == 1 else 'them'} out")

    def refuse_on_gpu(self) -> None:
        """Refuses what only the emulator heeds, where a GPU runs the kernel."""
        given = [*given_options("schedules"), *(f"--emulate {name}" for name in sorted(self.given - {"ptxas"}))]
        if given:
            raise UsageProblem(
                f"{', '.join(given)}: only the emulator heeds it; leave it out, or add --device emulator"
            )


timeout_option = click.option(
    "--timeout",
    type=FiniteRange(0, min_open=True),
    metavar="SECONDS",
    help="Seconds that an emulated launch may take, or a GPU may show no progress.  "
    f"[default: no limit; of a GPU {GPU_SILENCE:g}]",
)


def jobs_option(what: str = "Worker processes.") -> Callable[[Command], Command]:
    return click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, metavar="N", help=what)


def emulation_options(
    *names: str, schedules: str = "1", first_seed: int = 0, jobs: bool = True, timeout: bool = True, **defaults: Any
) -> Callable[[Command], Command]:
    """Returns the decorator that gives a command an `Emulation`. names: the settings that it knows; schedules,
    first_seed: where nothing is said; jobs, timeout: whether it has these; defaults: of fields of `EmulationOptions`,
    where it has others.
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
            raise UsageProblem(f"--schedules 1@{seed}: fifo is run, and nothing is random; write random:{seed}")
        return Emulation(options, schedules.count, ptxas, given)

    said: list[Callable[[Command], Command]] = [click.option(
        "--schedules",
        type=Parsed("SCHEDULES", parse_schedules),
        default=schedules,
        show_default=True,
        metavar="SCHEDULES",
        help="fifo, declining, random:SEED, or how many: 10, or 10@SEED, are fifo and random ones.",
    ), click.option(
        "--emulate",
        multiple=True,
        type=Parsed("NAME=VALUE", lambda text: parse_setting(text, names)),
        metavar="NAME=VALUE",
        help=f"Set {'; '.join(_written(name, defaults) for name in names)}. The first value is the default.",
    )]  # fmt: skip
    said += [jobs_option()] if jobs else []
    return group("emulation", gathered, *said, *([timeout_option] if timeout else []))


def _written(name: str, defaults: dict[str, Any]) -> str:
    """A setting and its values, the default first."""
    default = defaults.get(name)
    first = {True: "true", False: "false"}.get(default, default) if default is not None else None
    values = sorted(SETTINGS[name].values, key=lambda value: value != first) if first else SETTINGS[name].values
    return f"{name}={'|'.join(values)}"


def emulation_words(emulation: Emulation, *, schedules: str = "1", first_seed: int = 0, **defaults: Any) -> list[str]:
    """Returns the words of a command that say the same, but for what is its default: the reverse of
    `emulation_options`, with the same defaults. Worker processes are left out, as they change nothing.
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
    return words if options.timeout is None else [*words, "--timeout", f"{options.timeout:g}"]


def _schedules_text(emulation: Emulation, first_seed: int) -> str:
    schedule, seed = emulation.options.schedule, emulation.options.seed
    if emulation.schedules == 1 and schedule != "fifo":
        return f"random:{seed}" if schedule == "random" else schedule
    draws = emulation.schedules > 1 or emulation.options.uninitialised == "random"
    return f"{emulation.schedules}@{seed}" if draws and seed != first_seed else str(emulation.schedules)
