"""Translates old spellings of the command line. They work for one release, and print the new command once.

Delete this file after that release; nothing else of the command line uses it.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from emugpu.errors import UsageProblem

OPTIONS = {
    **{
        f"--{name}": f"-c {name.replace('-', '_')}={{}}"
        for name in (
            "preset", "arch", "scales", "out-dtype", "cta-group", "mma-shape", "stages", "cluster", "epilogue-width",
            "scheduler", "raster-group", "accumulators", "clc-depth", "sms", "split-k", "layout", "epilogue",
        )
    },
    **{f"--{name}": f"--problem {name}={{}}" for name in ("groups", "masked", "inputs", "seed")},
    **{
        f"--{name}": f"--emulate {name}={{}}"
        for name in ("accumulation", "resident-clusters", "max-steps", "uninitialised", "engine", "allow")
    },
    **{f"--{name}": "-o {}" for name in ("sarif", "junit", "markdown", "table")},
    "--multicast": "-c multicast=true",
    "--no-multicast": "-c multicast=false",
    "--ping-pong": "-c ping_pong=true",
    "--cooperative": "-c ping_pong=false",
    "--swapped": "-c swapped=true",
    "--not-swapped": "-c swapped=false",
    "--tuned": "",
    "--no-tuned": "-c preset=default",
    "--strict": "--emulate strict=true",
    "--no-strict": "--emulate strict=false",
    "--ptxas": "--emulate ptxas=true",
    "--no-ptxas": "--emulate ptxas=false",
    "--waste": "--redundant",
    "--dump": "-o {}/",
    "--format json": "-o -",
    "--format text": "",
    "--retry-failed": "--resume failed",
    "--rank": "",
}  # fmt: skip
"""Old options of ``harness``, also where the command is now one of ``emugpu``, and the words that replace each, with
{} for the value. An option without words is dropped.
"""


def takes_value(option: str) -> bool:
    """Returns whether an old option has a value behind it."""
    return "{}" in OPTIONS[option] or option == "--rank"


COMMANDS = {
    "exec": "emugpu exec",
    "check": "harness verify",
    "ptx run": "emugpu run",
    "ptx check": "emugpu verify",
    "ptx predict": "harness predict",
    "ptx list": "emugpu ptx list",
    "ptx init": "emugpu ptx init",
    "ptx corpus": "emugpu verify",
}
"""Old commands. With a kernel of ours a command goes to harness, with a launch file or a program to emugpu
(`_forwarded`).
"""

GONE = {
    "survey": "harness survey is gone, with the archives of surveys; conformance asks a GPU: python -m conformance",
    "ptx coverage": "harness ptx coverage is gone; the page is docs/ptx-coverage.md",
    "timeline --measured": "timeline --measured is gone, with the archives of surveys; leave it out",
    "debug --timeout": "debug --timeout is gone; --emulate max-steps=N limits the run that is recorded",
    "predict --timeout": "predict --timeout is gone; Ctrl-C ends a prediction",
    "report --results": "report --results is gone; set HARNESS_RESULTS_DIR, which all commands read",
    "compare --predict": "compare --predict is gone; use harness predict KERNEL... --gpu GPU",
    "bench --all": "bench --all is gone; -o FILE.md has all cases",
    "--format svg": "--format svg is gone; the ending of the file chooses the format: -o FILE.svg",
    "--device emulated-gpu": "--device emulated-gpu is gone, it is a test of the driver now; use --device emulator",
}
"""What was removed, and what replaces it."""

_KERNEL_OR_FILE = ("run", "verify", "debug")
"""The commands that both programs have."""
_SCHEDULES = ("--schedules", "--schedule", "--schedule-seed", "--schedule-seeds", "--seeds")
_SEEDS_OF_SCHEDULES = ("exec", "ptx run", "ptx check")
"""The commands whose --seed was the seed of the schedules."""
_CYCLES = ("--from", "--to")
_RESUME = ("missing", "failed")
_USUAL = {"verify": "4", "bench": "4"}
"""The number of schedules if only their seed is given."""
_ALONE = (
    "--no-save",
    "--notes",
    "--rules",
    "--redundant",
    "--shrink",
    "--screen",
    "--adapter",
    "--help",
    "-h",
    "--quiet",
)
"""The options of `_KERNEL_OR_FILE` that take no value."""


def respell(words: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the program that accepts this command line now, and the words in their new spelling. Prints the new
    command on standard error. Raises UsageProblem for what was removed.
    """
    start = next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))
    before, command, rest = [*words[:start]], words[start : start + 1], [*words[start + 1 :]]
    if not command:
        return "harness", [*words]
    name = command[0]
    if name == "ptx" and rest and not rest[0].startswith("-"):
        name = f"ptx {rest.pop(0)}"
    if name in GONE:
        raise UsageProblem(GONE[name])
    program, _, now = COMMANDS.get(name, f"harness {name}").partition(" ")
    mine, dashes, target = _split(rest)
    mine = _options(name, now, mine)
    rest = [*mine, *dashes, *target]
    if program == "harness" and now in _KERNEL_OR_FILE and _forwarded(mine, bool(dashes)):
        program = "emugpu"
    found = [*before, *now.split(), *rest]
    if (program, found) != ("harness", [*words]):
        print(f"harness: note: this is now: {program} {shlex.join(found)}", file=sys.stderr)
    return program, found


def _split(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Splits the words into those before ``--``, ``--`` itself, and the words of a program behind it."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place : place + 1], words[place + 1 :]


def _forwarded(words: list[str], has_program: bool) -> bool:
    """Returns whether the words name a launch file, a folder or a program instead of a kernel."""
    named, left = [], [*words]
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            named.append(word)
        elif left and (word != "--profile" or left[0].endswith(".json")) and word not in _ALONE and "=" not in word:
            left.pop(0)
    if has_program or not named:
        return has_program
    if named[0].endswith(".toml"):
        return all(word.endswith(".toml") for word in named)
    from harness.compile.catalog import KERNELS  # imported here because most commands do not need it

    is_kernel = named[0] in (*KERNELS, "all") or named[0].endswith(".mojo")
    return not is_kernel and (Path(named[0]).is_dir() or shutil.which(named[0]) is not None)


def _options(old: str, command: str, words: list[str]) -> list[str]:
    """Returns the words of a command with its options in their new spelling."""
    found: list[str] = []
    together: dict[str, str] = {}
    has_preset = any(word.partition("=")[0] == "--preset" for word in words)
    left = [word for word in words if not (word == "--no-tuned" and has_preset)]
    joins = _joins(old, command, {word.partition("=")[0] for word in words})
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        pair = f"{name} {value if equals else ''.join(left[:1])}"
        for gone in (f"{command} {name}", pair):
            if gone in GONE:
                raise UsageProblem(GONE[gone])
        if word == "--resume" and left and not left[0].startswith("-") and left[0] not in _RESUME:
            found += [word, _RESUME[0]]  # it took no value
            continue
        option, joined = pair if pair in OPTIONS else name, name in joins
        is_old = option in OPTIONS and (name != "--format" or command == "explain")  # only explain had --format
        has_value = is_old and takes_value(option)
        if not joined and (not is_old or (has_value and not equals and not left)):
            found.append(word)
            continue
        if not equals and left and (joined or has_value or option == pair):
            value = left.pop(0)
        if joined:
            together["--schedule-seed" if name == "--seed" else name] = value
            continue
        if name == "--format" and (places := _places(words)):
            _check_format(value, places)
            continue
        now = OPTIONS[option]
        if value == "-" and now.startswith("-o"):
            raise UsageProblem(f"{name} -: name a file; -o - is JSON on standard output")
        found += [part.format(value.rstrip("/") if part == "{}/" else value) for part in now.split()]
    return [*found, *_joined(command, together)]


def _places(words: list[str]) -> list[str]:
    """Returns the places that -o names."""
    behind = [place for word, place in pairwise(words) if word in ("-o", "--output")]
    return behind + [word.partition("=")[2] for word in words if word.startswith("--output=")]


def _check_format(form: str, places: list[str]) -> None:
    """Refuses a format that the ending of the file does not choose now."""
    ending = {"json": ".json", "text": ".txt"}[form]
    for place in places:
        if not place.endswith(ending) and (form, place) != ("json", "-"):
            raise UsageProblem(
                f"--format {form} -o {place}: the ending of the file chooses the format: -o FILE{ending}"
            )


def _joins(old: str, command: str, given: set[str]) -> tuple[str, ...]:
    """Returns the options that become one word. --schedules alone did not change."""
    seeds = ("--seed",) if old in _SEEDS_OF_SCHEDULES else ()
    schedules = (*_SCHEDULES, *seeds) if given & {*_SCHEDULES[1:], *seeds} else ()
    return (*schedules, *(_CYCLES if command == "timeline" else ()))


def _joined(command: str, given: dict[str, str]) -> list[str]:
    """Joins several old options into one word."""
    schedules = {name: value for name, value in given.items() if name in _SCHEDULES}
    words = _schedules(command, schedules) if schedules else []
    cycles = ":".join(given.get(name, "") for name in _CYCLES)
    return words if cycles == ":" else [*words, "--cycles", cycles]


def _schedules(command: str, given: dict[str, str]) -> list[str]:
    """Joins the old options about schedules into one word."""
    seeds = given.get("--schedule-seeds", given.get("--seeds"))
    if seeds is not None:  # only sweep has seeds
        return ["--schedules", f"random:{seeds}"]
    schedule, seed = given.get("--schedule"), given.get("--schedule-seed")
    count = given.get("--schedules")
    if schedule not in (None, "fifo") and count not in (None, "1"):
        raise UsageProblem(f"--schedules {count} are fifo and random ones; leave --schedule {schedule} out")
    if schedule is not None and count in (None, "1"):
        return ["--schedules", f"random:{seed or 0}" if schedule == "random" else schedule]
    count = count or _USUAL.get(command, "1")
    return ["--schedules", count if seed is None else f"{count}@{seed}"]
