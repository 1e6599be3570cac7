"""The commands ``explain`` and ``build`` examine a kernel without running it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import click
from rich.console import Console

from emugpu.check.protocol import Protocol
from emugpu.check.protocol import as_dict as protocol_as_dict
from emugpu.cli import render
from emugpu.cli.options import as_json, check_output, write_output
from emugpu.cli.outputs import Outputs, output_option
from emugpu.errors import UsageProblem
from emugpu.launch.launching import EmulationOptions, run
from harness.cli.options import ConfigOptions, Problem, config_options, kernel_argument, problem_options
from harness.compile import few_rows
from harness.compile.artifacts import build_with_notice, make_launchable, plan_json
from harness.compile.config import KernelConfig
from harness.compile.emit import KINDS, emit
from harness.compile.planner import parse_plan
from harness.compile.presets import chosen_options
from harness.compile.tilings import NOT_HIDDEN, estimates, offered
from harness.launch.tuned import everywhere
from harness.problem import Shape
from harness.report import protocol
from harness.report.svg import as_svg
from harness.report.text import WIDTH, as_dict, as_text
from harness.run.runner import check_memory

MIN_WIDTH = 40


@click.command()
@kernel_argument
@problem_options("groups", "masked")
@config_options
@click.option(
    "--protocol",
    "hand_overs",
    is_flag=True,
    help="Show which warps signal which through which barrier in an emulated run, instead of the plan.",
)
@click.option("--why", is_flag=True, help="Show why this tile, split of K and order of operands were chosen.")
@output_option("json", "svg", "txt")
def explain(kernel: str, problem: Problem, config: ConfigOptions, hand_overs: bool, why: bool, outputs: Outputs) -> int:
    """Explain a launch: shared memory, roles, barriers, multicast.

    Everything is computed from the launch plan; --protocol counts events of a run, --why shows estimates.
    """
    shape = problem.shape
    if why:
        _refuse(outputs, "--why writes text", "json", "svg")
        if hand_overs:
            raise UsageProblem("--why is about the choice, --protocol about a run; leave one of them out")
        asked = chosen_options(kernel, config.preset, dict(config.asked))
        found = config.configure(kernel, shape)
        text = _why(found, asked, shape) + (_tuned(found, shape) if config.asks_nothing else "")
        return _write(outputs, lambda width: text)
    if hand_overs:
        _refuse(outputs, "--protocol is text or JSON, and no picture", "svg")
        seen = _hand_overs(config.configure(kernel, shape), shape)
        return _write(
            outputs, lambda width: protocol.as_text(seen, width) + "\n", json=lambda: as_json(protocol_as_dict(seen))
        )
    configured = config.configure(kernel, shape)
    planned = plan_json(configured, shape)
    plan = parse_plan(planned, configured.sources.epilogue)
    return _write(
        outputs,
        lambda width: as_text(plan, width) + "\n",
        json=lambda: as_json(as_dict(plan, json.loads(planned))),
        svg=lambda: as_svg(plan),
    )


def _refuse(outputs: Outputs, why: str, *kinds: str) -> None:
    for kind, place in outputs.places:
        if kind in kinds:
            raise UsageProblem(f"-o {place}: {why}; name a file that ends in .txt, or leave it out")


def _write(outputs: Outputs, text: Callable[[int], str], **others: Callable[[], str]) -> int:
    """Writes files. The screen gets ``text``, formatted for its width, unless another output goes to it."""
    written = outputs.write(None, txt=lambda: text(WIDTH), **others)
    if not outputs.places:
        write_output(text(_width()), "-")
    return written.exit_code


CHOICES_SHOWN = 8


def _why(config: KernelConfig, asked: Mapping[str, Any], shape: Shape) -> str:
    """Returns a table of the best choices, and explains its figures."""
    kernel = config.described_kernel
    found = estimates(kernel, config.arch, asked, shape)
    if not found:
        why = f"{config.kernel} of {config.arch} chooses nothing by the problem"
        if config.kernel == few_rows.NAME:
            why = few_rows.WHY if asked.get("mma_shape") is None else "the requested tile is used unchanged"
        elif offered(kernel, config.arch, {"scales": asked.get("scales")}):
            why = "the requested configuration is none of the choices and is used unchanged"
        return f"{config.label}: {why}\n"
    lines = [
        f"{shape}: {config.label}",
        f"{'tile':>10} {'cluster':>8} {'parts of K':>11} {'waves':>6} {'work':>10} {'DRAM':>10} {'hand-over':>10} "
        f"{'cycles':>10}",
    ]
    chosen = [one for one in found if all(getattr(config, name) == value for name, value in one.options.items())]
    for one in [*found[:CHOICES_SHOWN], *(one for one in found[CHOICES_SHOWN:] if one in chosen)]:
        tile, cluster = ("x".join(map(str, pair)) for pair in (one.tiling.mma_shape, one.tiling.cluster))
        how = " ping-pong" if one.tiling.ping_pong else " swapped" if one.tiling.swapped else ""
        lines.append(
            f"{tile:>10} {cluster:>8} {one.split_k:>11} {one.waves:>6} {one.work:>10,.0f} {one.dram:>10,.0f} "
            f"{one.handing_over:>10,.0f} {one.cycles:>10,.0f}{how}{'  <- chosen' if one in chosen else ''}"
        )
    count = "1 choice" if len(found) == 1 else f"{len(found)} choices"
    if len(found) > CHOICES_SHOWN:
        count += f", the best {CHOICES_SHOWN} shown"
    return "\n".join(
        [
            *lines,
            f"{count}. Estimates in cycles, only to rank the choices, not measured: work is multiplying or",
            "filling shared memory, whichever is more; cycles the larger of work and DRAM, "
            f"{NOT_HIDDEN:g} of the other, and the",
            "hand-over of partial sums. Configurations that the kernels refuse are left out. harness predict runs "
            "the PTX.\n",
        ]
    )


def _tuned(config: KernelConfig, shape: Shape) -> str:
    """Returns the configuration that GPUs use instead, and its evidence in a line."""
    lines = []
    for kind, entry in everywhere(config.described_kernel.word, config.arch, config.dtype, shape).items():
        try:
            label = entry.configuration().label
        except UsageProblem as error:
            lines.append(f"{kind}: the configuration tuned for {entry.shapes} is no longer valid: {error}\n")
            continue
        evidence = {name: value for name, value in entry.evidence.items() if name in ("gain", "interval", "time")}
        lines.append(
            f"{kind}: {label} instead, tuned for {entry.shapes}; measured: "
            f"{', '.join(f'{name} {value}' for name, value in evidence.items())}. "
            f"All the evidence: harness tune {entry.kernel} --shape {shape.as_option} --explain\n"
        )
    return "".join(lines)


def _hand_overs(config: KernelConfig, shape: Shape) -> Protocol:
    check_memory(shape, config.dtype)
    [artifact] = build_with_notice([config])
    what = make_launchable(artifact, shape, "integer", seed=0)
    seen = Protocol(what.roles)
    run(what, EmulationOptions(sinks=(seen,)), keep=())
    return seen


@click.command("build")
@kernel_argument
@problem_options("groups", "masked")
@config_options
@click.option(
    "--emit",
    "what",
    type=click.Choice(list(KINDS)),
    help="What to write: PTX, machine code, the launch plan for the shape, or figures about the code.",
)
@click.option("-o", "--output", metavar="FILE", default="-", help="File to write.  [default: the screen]")
def build_command(kernel: str, problem: Problem, config: ConfigOptions, what: str | None, output: str) -> None:
    """Compile KERNEL and write its code or figures about it."""
    check_output(output, "-o")
    if what is None and output != "-":
        raise click.UsageError("-o does not say what to write; add --emit ptx, sass, plan or asm-stats")
    shape = problem.shape
    [artifact] = build_with_notice([config.configure(kernel, shape)])
    if what is not None:
        write_output(emit(artifact, what, shape), output)
        return
    done = "compiled" if artifact.compiled_now else "was compiled before"
    render.show_line(Console(), f"{artifact.config.label}: {done}, PTX in {artifact.folder / 'kernel.ptx'}")


def _width() -> int:
    """Returns the width of the terminal if it is narrower than the text, because lines broken by the terminal are hard
    to read.
    """
    console = Console()
    return max(MIN_WIDTH, min(WIDTH, console.width)) if console.is_terminal else WIDTH
