"""The command ``harness verify`` gives verdicts on our kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from emugpu.cli.emulation import Emulation
from emugpu.cli.outputs import Outputs
from emugpu.cli.verdicts import Subject, Wanted, give_verdicts, verdict_options
from emugpu.launch.shrink import Numbers
from harness.cli.kernels import compiled, launchable
from harness.cli.options import ConfigOptions, Problem, config_options, kernels_argument, problem_options, ptx_option
from harness.cli.repeat import kernel_words
from harness.cli.running import kernels_named
from harness.compile.artifacts import Artifact

INPUTS = "index"
"""Every element of A and B has its own value, so a wrong tile shows."""


@click.command("verify")
@kernels_argument
@problem_options("groups", "masked", "inputs", "seed")
@config_options
@ptx_option
@verdict_options
def verify_command(
    kernels: tuple[str, ...],
    problem: Problem,
    config: ConfigOptions,
    ptx_file: Path | None,
    wanted: Wanted,
    emulation: Emulation,
    outputs: Outputs,
) -> int:
    """Give a verdict: clean, wrong, racy, hung or incomplete.

    Runs each KERNEL on the emulated GPU, compares the results, checks the synchronisation, and says what the verdict
    rests on. A part that could not be checked makes it incomplete, never clean. emugpu verify does the same with
    anyone's PTX.
    """
    names = kernels_named(kernels, config.dtype)
    subjects = [_subject(artifact, problem) for artifact in compiled(names, problem, config, ptx_file)]
    return give_verdicts(subjects, wanted, emulation, outputs)


def _subject(artifact: Artifact, problem: Problem) -> Subject:
    def of(values: Mapping[str, int]) -> Problem:
        return replace(problem, shape=problem.shape.with_numbers(values))

    def numbers() -> Numbers:
        return Numbers(problem.shape.numbers(), lambda values: launchable(artifact, of(values), INPUTS), expects=True)

    def command(values: Mapping[str, int]) -> list[str]:
        smaller = of(values)
        inputs = smaller.inputs or INPUTS
        words = kernel_words(artifact.config, smaller.shape, inputs if inputs != INPUTS else "", smaller.seed)
        return ["harness", "verify", *words, *(["--ptx", str(artifact.edited)] if artifact.edited else [])]

    return Subject(launchable(artifact, problem, INPUTS), numbers, command)
