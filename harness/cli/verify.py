"""``harness verify``: one verdict on a kernel, a launch file or a program."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
from rich.console import Console

from emugpu.check.findings import as_sarif
from emugpu.check.verdict import Verdict
from emugpu.cli.options import (
    accumulation_option,
    check_output,
    group,
    json_option,
    launch_timeout_option,
    refuse_given,
    resident_clusters_option,
    schedule_option,
    schedules_option,
    seed_of_schedules,
    write_output,
)
from emugpu.cli.program import try_write
from emugpu.cli.render import progress_bar, several, show_line
from emugpu.driver.gpu_model import gpu_model, gpu_names
from emugpu.driver.log import Log
from emugpu.driver.log import judge as judge_program
from emugpu.driver.server import run_program
from emugpu.driver.state import Gpu
from emugpu.errors import EXIT_CANNOT_RUN, UsageProblem
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.shrink import Numbers, of_launch_file, shrink, smaller_file
from harness.cli.check import launchables
from harness.cli.options import ConfigOptions, config_options, shape_option
from harness.cli.repeat import kernel_words, verify_command_of
from harness.cli.running import (
    OF_KERNELS,
    check_schedules,
    one_launch_file,
    read_target,
    refuse_what_kernels_have,
)
from harness.compile.artifacts import build_with_notice, make_launchable
from harness.problem import Shape

INPUTS = "index"
"""Of kernels: every element of A and B is another one, so that a wrong tile shows."""
OF_LAUNCHES = ("schedules", "schedule", "schedule_seed", "resident_clusters", "smaller")
"""Parameters of kernels and launch files: a program has one schedule, and its own launches."""
_STYLES = {"clean": "bold green", "incomplete": "bold yellow"}


def _emulation(schedule_seed: int, **more: Any) -> EmulationOptions:
    return EmulationOptions(seed=schedule_seed, strict=False, **more)


_emulation_options = group(
    "emulation",
    _emulation,
    schedule_option,
    seed_of_schedules("--schedule-seed", default=1),
    resident_clusters_option,
    accumulation_option,
    launch_timeout_option,
)


@click.command("verify")
@click.option("--gpu", type=click.Choice(gpu_names()), default="b200", show_default=True, help="GPU of a program.")
@shape_option
@config_options
@schedules_option(4, "4")
@_emulation_options
@click.option(
    "--shrink",
    "smaller",
    is_flag=True,
    help="Find a smaller case in which the same goes wrong, and the one schedule; print the command that shows it.",
)
@json_option
@click.option("--sarif", "sarif_path", metavar="PATH", help="Write the findings there as SARIF 2.1.0.")
@click.option("--junit", "junit_path", metavar="PATH", help="Write the verdict there as JUnit XML.")
@click.argument("words", nargs=-1, required=True, metavar="KERNEL|LAUNCH.toml|-- PROGRAM [ARGUMENTS...]")
def verify_command(
    gpu: str,
    shape: Shape,
    config: ConfigOptions,
    schedules: int,
    emulation: EmulationOptions,
    smaller: bool,
    json_path: str | None,
    sarif_path: str | None,
    junit_path: str | None,
    words: tuple[str, ...],
) -> int:
    """Give one verdict: clean, wrong, racy, hung or incomplete.

    Runs a kernel, a launch file, or a program that uses the CUDA driver, on the emulated GPU, compares the results,
    checks the synchronisation, and says what the verdict rests on. What could not be looked at is incomplete, never
    clean.

    Exit codes: 0 clean, 1 racy, 2 usage, 3 hung, 4 wrong, 5 incomplete.
    """
    for name, path in (("--json", json_path), ("--sarif", sarif_path), ("--junit", junit_path)):
        check_output(path, name)
    # What kind of thing is looked at decides which options mean something.
    words, is_program = read_target(words)
    if is_program:
        refuse_given(f"{words[0]} is a program, which says itself what it launches", *OF_KERNELS, *OF_LAUNCHES)
        verdict, file = _of_program(words, gpu, emulation)
    else:
        refuse_given(f"{words[0]} is no program", "gpu")
        check_schedules(schedules, emulation.schedule)
        verdict, file = _of_launchable(words, shape, config, CheckOptions(schedules, emulation), smaller)
    files = []
    if sarif_path:
        files.append((sarif_path, json.dumps(as_sarif([(file, verdict.report)]), indent=2)))
    if junit_path:
        files.append((junit_path, as_junit(verdict)))
    if json_path:
        files.append((json_path, json.dumps(verdict.as_dict(), indent=2, allow_nan=False)))
    written = [try_write(partial(write_output, text + "\n", path)) for path, text in files]
    if json_path != "-":
        _show(Console(), verdict)
    return verdict.exit_code if all(written) else EXIT_CANNOT_RUN


def _of_launchable(
    words: tuple[str, ...], shape: Shape, config: ConfigOptions, options: CheckOptions, smaller: bool
) -> tuple[Verdict, str]:
    if len(words) > 1:
        raise UsageProblem(f"verify looks at one kernel or launch file, and {len(words)} are named; name one")
    path = one_launch_file(words)
    if path is not None:
        refuse_what_kernels_have(path)
        what = read_launch_file(path)
    else:
        [what] = launchables(words, shape, config, None, INPUTS, 0, ptxas=True)
    with progress_bar(f"verifying {words[0]}", "schedules") as progress:
        [checked] = check([what], options, progress)
    verdict = judge(what, checked)
    if smaller and verdict.word in ("hung", "wrong", "racy"):
        verdict = replace(verdict, smaller=_smaller(path, words[0], shape, config, options))
    return verdict, str(what.ptx)


def _smaller(path: Path | None, kernel: str, shape: Shape, config: ConfigOptions, options: CheckOptions) -> str:
    """The command that shows the same in a smaller case, and how it differs; for a launch file it writes another."""
    if path is not None:
        numbers, target = of_launch_file(path), [str(path)]
    else:
        configured = config.configure(kernel, shape)
        [artifact] = build_with_notice([configured])
        numbers = Numbers(
            shape.numbers(),
            lambda values: make_launchable(artifact, shape.with_numbers(values), INPUTS, 0),
            expects=True,
        )
    found = shrink(numbers, options)
    if found is None:
        return "not found: no schedule shows an error that would be recognised in a smaller case"
    new = found.values
    changed = [f"{name} {old} to {new[name]}" for name, old in numbers.values.items() if old != new[name]]
    differs = ", ".join(changed) or "no smaller numbers show the same"
    if path is None:
        target = kernel_words(configured, shape.with_numbers(new))
    elif changed:
        target = [str(path.with_name(f"{path.stem}-smaller.toml"))]
        if not try_write(partial(write_output, smaller_file(path, new), target[0])):
            return f"found, but {target[0]} could not be written: {differs}"
    return f"{verify_command_of(target, found.emulation)}  # {differs}; {several(found.runs, 'run')}"


def _of_program(words: tuple[str, ...], gpu: str, emulation: EmulationOptions) -> tuple[Verdict, str]:
    log = Log()
    # As exec has it: programs that run well read memory that nobody has written, and do not use what they get.
    emulation = replace(emulation, uninitialised="report")
    code = run_program(words, Gpu(gpu_model(gpu), emulation, log, check=True), os.environ)
    failure = f"the program ended with code {code}" if code else ""
    return judge_program(log, " ".join(words), failure, checked=True), words[0]


def as_junit(verdict: Verdict) -> str:
    """Returns JUnit XML with one test case: a failure of what is wrong, racy or hung, skipped if it is incomplete."""
    word = verdict.word
    failed, skipped = word not in ("clean", "incomplete"), word == "incomplete"
    counts = {"tests": "1", "failures": str(int(failed)), "skipped": str(int(skipped))}
    suite = ElementTree.Element("testsuite", {"name": "harness verify", **counts})
    case = ElementTree.SubElement(suite, "testcase", classname="harness.verify", name=verdict.target)
    if word != "clean":
        outcome = ElementTree.SubElement(case, "failure" if failed else "skipped", message=word)
        outcome.text = "\n".join(reason for _, reason in verdict.reasons)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _show(console: Console, verdict: Verdict) -> None:
    *lines, word = verdict.lines()
    for line in lines:
        show_line(console, line)
    show_line(console, word, _STYLES.get(verdict.word, "bold red"))
