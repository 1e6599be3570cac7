"""``harness check``: is the synchronisation of a kernel sound, or does it only happen to work?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console

from harness.check.findings import Finding
from harness.check.rules import RULES
from harness.check.sarif import as_sarif
from harness.cli import render
from harness.cli.clear_errors import written_clearly
from harness.cli.options import (
    LARGEST_SEED,
    ConfigOptions,
    check_output,
    config_options,
    group,
    json_option,
    shape_option,
    write_output,
)
from harness.compiler.build import build_with_notice
from harness.config.catalog import KERNELS
from harness.config.config import KernelConfig
from harness.errors import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, EXIT_WRONG_RESULT, UsageProblem
from harness.files import write_text
from harness.problem.inputs import KINDS
from harness.problem.shape import Shape
from harness.run.check import Checked, CheckOptions, Target, check, chosen
from harness.run.emulate import Accumulation
from harness.run.runner import check_memory

_STYLES = {"error": "bold red", "warning": "yellow", "note": ""}


def _show_rules(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        rows = [(rule.id, rule.severity, rule.summary) for rule in RULES.values()]
        render.show_table(Console(), "rules", ("id", "severity", "rule"), rows)
        context.exit()


_how_options = group(
    "how",
    CheckOptions,
    click.option(
        "--schedules",
        type=click.IntRange(1),
        default=4,
        show_default=True,
        help="Runs: the first in the order of issue, the others in random orders.",
    ),
    click.option("--inputs", type=click.Choice(KINDS), default="integer", show_default=True, help="Values of A and B."),
    click.option(
        "--seed",
        type=click.IntRange(0, LARGEST_SEED),
        default=0,
        show_default=True,
        help="For the inputs and the random schedules.",
    ),
    click.option(
        "--accumulation",
        type=click.Choice(get_args(Accumulation)),
        default="f32",
        show_default=True,
        help="Arithmetic of the emulated tensor core.",
    ),
    click.option(
        "--resident-clusters",
        type=click.IntRange(1),
        help="Clusters the emulated GPU holds at once.  [default: as many as there is room for, and one in the last "
        "schedule of a kernel that computes tile after tile]",
    ),
    click.option("--max-steps", type=click.IntRange(1), help="Warp instructions after which a run is ended."),
    click.option("--timeout", type=click.FloatRange(1), help="Seconds after which a run is ended."),
)


@dataclass(frozen=True)
class Shown:
    """What of the findings is told, and where to."""

    strict: bool
    notes: bool
    allow: tuple[str, ...]
    json_path: str | None
    sarif_path: str | None


_shown_options = group(
    "shown",
    Shown,
    click.option("--strict", is_flag=True, help="Warnings are errors."),
    click.option("--notes", is_flag=True, help="Show notes, too."),
    click.option(
        "--allow", multiple=True, type=click.Choice(list(RULES)), help="Leave out this rule; may be repeated."
    ),
    json_option,
    click.option("--sarif", "sarif_path", metavar="PATH", help="Write SARIF 2.1.0 there, for code-scanning services."),
)


@click.command("check")
@click.argument("kernels", nargs=-1, required=True, metavar="KERNEL...|all")
@shape_option
@config_options
@click.option("--ptx", metavar="FILE", help="Check this PTX in place of what KERNEL compiles to, with the same launch.")
@_how_options
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes that share the runs.")
@_shown_options
@click.option(
    "--rules", is_flag=True, is_eager=True, expose_value=False, callback=_show_rules, help="List the rules, and exit."
)
def check_command(
    kernels: tuple[str, ...],
    shape: Shape,
    config: ConfigOptions,
    ptx: str | None,
    how: CheckOptions,
    jobs: int,
    shown: Shown,
) -> int:
    """Check the synchronisation of KERNELs, on the emulated GPU.

    Finds accesses that nothing orders, missing fences, wrong counts, bytes, masks and lifetimes, also where the runs
    happen to give the right result.

    Exit codes: 0 no errors, 1 errors, 2 usage, 3 a run did not end (what was found until then is shown), 4 wrong
    result.
    """
    check_output(shown.json_path, "--json")
    check_output(shown.sarif_path, "--sarif")
    names = list(dict.fromkeys(name for word in kernels for name in (KERNELS if word == "all" else [word])))
    if ptx is not None and len(names) != 1:
        raise UsageProblem(
            f"--ptx {ptx!r} takes the place of one kernel's PTX, and {len(names)} kernels are named; name one"
        )
    replacement = None if ptx is None else _read(ptx)
    configs = [config.configure(name, shape) for name in names]
    for each in configs:
        check_memory(shape, each.dtype)
    targets = _targets(configs, shape, ptx, replacement)
    found = [chosen(one, shown.strict, shown.notes, shown.allow) for one in check(targets, how, jobs)]
    written = written_clearly(lambda: _report(found, how, shown))
    return _exit_code(found) or (EXIT_OK if written else EXIT_CANNOT_RUN)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageProblem(f"--ptx {path!r} cannot be read: {error}; name a file of PTX text") from None


def _targets(configs: Sequence[KernelConfig], shape: Shape, file: str | None, ptx: str | None) -> list[Target]:
    return [
        Target(
            artifact.config,
            shape,
            artifact.plan(shape),
            artifact.ptx if ptx is None else ptx,
            file or str(artifact.folder / "kernel.ptx"),
        )
        for artifact in build_with_notice(configs)
    ]


def _exit_code(found: Sequence[Checked]) -> int:
    if any(one.failure for one in found):
        return EXIT_CANNOT_RUN
    if any(one.correct is False for one in found):
        return EXIT_WRONG_RESULT
    return EXIT_FINDINGS if any(one.report.errors for one in found) else EXIT_OK


def _report(found: Sequence[Checked], how: CheckOptions, shown: Shown) -> None:
    if shown.sarif_path:
        sarif = as_sarif([(one.target.file, one.report) for one in found])
        write_text(shown.sarif_path, json.dumps(sarif, indent=2) + "\n")
    text = json.dumps({"reports": [_as_dict(one, how) for one in found]}, indent=2) + "\n"
    if shown.json_path:
        write_output(text, shown.json_path)
    if shown.json_path == "-":
        return
    console = Console()
    for one in found:
        _show(console, one, how)
    for what, path in (("report", shown.json_path), ("SARIF", shown.sarif_path)):
        if path:
            render.show_line(console, f"{what} written to {path}")


def _as_dict(one: Checked, how: CheckOptions) -> dict[str, Any]:
    return {
        "kernel": one.target.config.kernel,
        "config": one.target.config.as_dict(),
        "problem": {"m": one.target.shape.m, "n": one.target.shape.n, "k": one.target.shape.k},
        "schedules": how.schedules,
        "failure": one.failure or None,
        "correct": one.correct,
        "findings": [finding.as_dict() for finding in one.report.findings],
    }


def _show(console: Console, one: Checked, how: CheckOptions) -> None:
    for finding in one.report.findings:
        head, *rest = _lines(finding)
        render.show_line(console, head, _STYLES[finding.severity])
        for line in rest:
            render.show_line(console, line)
    if one.failure:
        render.show_line(console, f"a run did not come to its end: {one.failure}", "bold red")
    if one.correct is False:
        render.show_line(console, "the result is wrong", "bold red")
    errors, warnings = len(one.report.errors), len(one.report.warnings)
    runs = "one schedule" if how.schedules == 1 else f"{how.schedules} schedules"
    clean = not errors and not one.failure and one.correct is not False
    verdict = "sound" if clean and not warnings else f"{_several(errors, 'error')}, {_several(warnings, 'warning')}"
    render.show_line(
        console,
        f"{one.target.config.label}, {one.target.shape}, {runs}: {verdict}",
        "bold green" if clean else "bold red",
    )


def _several(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def _lines(finding: Finding) -> list[str]:
    """The finding for a person."""
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    found = [f"{finding.severity} {finding.rule}: {finding.message}{times}"]
    for label, text in (
        ("first  ", finding.first),
        ("then   ", finding.second),
        ("missing", finding.missing),
        ("mend   ", finding.mend),
    ):
        if text:
            found.append(f"  {label}  {text}")
    return found
