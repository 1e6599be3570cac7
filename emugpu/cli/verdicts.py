"""The options, the work and the report of every command that gives verdicts.

`emugpu verify` gives them on launch files and programs. A command for other kernels makes a `Subject` of each:

    @click.command("verify")
    @click.argument("kernels", nargs=-1)
    @verdict_options
    def verify_command(kernels: tuple[str, ...], wanted: Wanted, emulation: Emulation, outputs: Outputs) -> int:
        return give_verdicts([case_of(kernel) for kernel in kernels], wanted, emulation, outputs)
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
from rich.console import Console

from emugpu.check.findings import RULES, as_sarif
from emugpu.check.verdict import EXIT_CODES, ORDER, Verdict
from emugpu.cli.emulation import SETTINGS, Emulation, emulation_options, emulation_words
from emugpu.cli.options import as_json, group, together
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.render import progress_bar, several, show_table
from emugpu.cli.verdict_output import as_junit, as_markdown, show_verdict
from emugpu.emulator.rules import WARNINGS
from emugpu.errors import CannotRun
from emugpu.launch.check import check, judge
from emugpu.launch.ptxas import require_accepted
from emugpu.launch.shrink import Numbers, shrink
from emugpu.launch.spec import Launchable

SILENCE = 120.0
"""If no cluster ends for this many seconds, there is no verdict."""
DEFAULTS: dict[str, Any] = {"schedules": "4", "first_seed": 1, "silence": SILENCE, "strict": False}
"""The defaults of the emulation options in commands that give a verdict."""


@dataclass(frozen=True)
class Wanted:
    """What a command shows besides its verdict.

    ``notes``: on the screen. ``redundant``: notes on synchronisation that could be left out. ``smaller``: a smaller
    case with the same error.
    """

    notes: bool = False
    redundant: bool = False
    smaller: bool = False


@dataclass(frozen=True)
class Subject:
    """The subject of one verdict.

    Smaller cases are made by changing ``numbers``. ``command`` returns the words that verify the case with other
    numbers: it writes the files that they name, and raises CannotRun if it cannot.
    """

    what: Launchable
    numbers: Callable[[], Numbers]
    command: Callable[[Mapping[str, int]], list[str]]


def _show_rules(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        rows = [(rule.id, rule.severity, rule.summary) for rule in RULES.values()]
        show_table(Console(), "rules", ("id", "severity", "rule"), rows)
        context.exit()


verdict_options = together(
    emulation_options(
        *SETTINGS,
        rules=(*RULES, *(rule for rule in WARNINGS if rule not in RULES)),
        **DEFAULTS,
    ),
    group(
        "wanted",
        Wanted,
        click.option("--notes", is_flag=True, help="Show notes, too."),
        click.option(
            "--redundant",
            is_flag=True,
            help="Note each fence, barrier and wait that the runs do not need: two more runs for each; use "
            "small sizes.",
        ),
        click.option(
            "--shrink",
            "smaller",
            is_flag=True,
            help="Print the command of a smaller case with the same error.",
        ),
    ),
    click.option(
        "--rules",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_rules,
        help="List the rules, and exit.",
    ),
    output_option("json", "sarif", "xml", "md"),
)


def give_verdicts(subjects: Sequence[Subject], wanted: Wanted, emulation: Emulation, outputs: Outputs) -> int:
    """Gives a verdict on each subject, shows and writes all of them, and returns the most severe exit code."""
    options = emulation.check_options(wanted.redundant)
    for subject in subjects if emulation.ptxas else ():
        require_accepted(subject.what)
    with progress_bar("verifying", "schedules") as progress:
        checked = check([subject.what for subject in subjects], options, progress)
    verdicts = [judge(subject.what, one) for subject, one in zip(subjects, checked, strict=True)]
    if wanted.smaller:
        verdicts = [_with_smaller(subject, one, emulation) for subject, one in zip(subjects, verdicts, strict=True)]
    files = [str(subject.what.ptx) for subject in subjects]
    return report(list(zip(files, verdicts, strict=True)), wanted, outputs)


def _with_smaller(subject: Subject, verdict: Verdict, emulation: Emulation) -> Verdict:
    if verdict.word not in ("hung", "wrong", "racy"):
        return verdict
    numbers = subject.numbers()
    found = shrink(numbers, emulation.check_options())
    if found is None:
        message = "not found: no schedule shows an error that would be recognised in a smaller case"
        return replace(verdict, smaller=message)
    new = found.values
    changed = [f"{name} {old} to {new[name]}" for name, old in numbers.values.items() if old != new[name]]
    differs = ", ".join(changed) or "no smaller numbers show the same error"
    alone = Emulation(replace(found.emulation, strict=emulation.options.strict, allow=emulation.options.allow))
    try:
        words = [*subject.command(new), *emulation_words(alone, **DEFAULTS)]
    except CannotRun as error:
        return replace(verdict, smaller=f"found ({differs}), but {error}")
    return replace(verdict, smaller=f"{shlex.join(words)}  # {differs}; {several(found.runs, 'run')}")


def report(verdicts: Sequence[tuple[str, Verdict]], wanted: Wanted, outputs: Outputs) -> int:
    """Writes and shows verdicts, each with the file that its PTX lines refer to. Returns the exit code."""
    alone = [verdict for _, verdict in verdicts]
    written = outputs.write(
        json=lambda: as_json(alone[0].as_dict() if len(alone) == 1 else [one.as_dict() for one in alone]),
        sarif=lambda: as_json(as_sarif([(file, one.report) for file, one in verdicts])),
        xml=lambda: as_junit(alone),
        md=lambda: as_markdown(alone),
    )
    if outputs.shows_report:
        console = Console()
        for verdict in alone:
            show_verdict(console, verdict, wanted.notes or wanted.redundant)
        written.show(console)
    return exit_code([verdict.word for verdict in alone]) or written.exit_code


def exit_code(words: Collection[str]) -> int:
    """Returns the exit code of the most severe verdict."""
    return EXIT_CODES[next((word for word in ORDER if word in words), "clean")]
