"""The command ``harness timeline`` draws a run as predicted by the timing model, as a trace, a picture or a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.render import several, show_line
from emugpu.cli.target import only_launch_file
from emugpu.errors import UsageProblem
from emugpu.gpus import usual_gpu
from emugpu.launch.launch_file import read_launch_file
from harness.cli.options import ConfigOptions, config_options, kernels_or_launch_argument, shape_option
from harness.cli.predict import for_gpu, refuse_what_kernels_have
from harness.cli.running import kernels_named
from harness.compile.artifacts import build_with_notice
from harness.model.constants import GpuConstants, find_gpu, gpu_names
from harness.model.predict import predict, predict_launches
from harness.model.simulate import simulate
from harness.model.timeline import CtaKey, Timeline, TimelineRecorder
from harness.model.timeline_html import html
from harness.model.timeline_svg import svg
from harness.model.trace_events import as_json
from harness.problem import Shape

STEP_HERTZ = 1e6
"""A step is drawn as a microsecond if the format has no other unit."""


def parse_ctas(text: str) -> tuple[CtaKey, ...]:
    """Reads ``CLUSTER:RANK,...``; a rank alone belongs to cluster 0."""
    found = []
    for word in text.split(","):
        cluster, colon, rank = word.rpartition(":")
        numbers = [cluster if colon else "0", rank]
        if not all(n.isascii() and n.isdecimal() and len(n) < 8 for n in numbers):
            raise UsageProblem(f"--ctas '{text}': write ranks of cluster 0, or CLUSTER:RANK, with commas between them")
        found.append((int(numbers[0]), int(numbers[1])))
    return tuple(found)


@dataclass(frozen=True)
class _TimelineArguments:
    gpu: GpuConstants
    ctas: tuple[CtaKey, ...] | None
    steps: bool

    def recorder(self, what: str, hertz: float) -> TimelineRecorder:
        if self.steps:
            return TimelineRecorder(f"{what}: logical steps, no times", STEP_HERTZ, self.ctas, "steps")
        return TimelineRecorder(f"{what}: predicted for {self.gpu.title}", hertz, self.ctas)


@click.command("timeline")
@kernels_or_launch_argument
@shape_option
@config_options
@click.option(
    "--gpu", "gpu_name", metavar="NAME", help=f"GPU to predict for: {', '.join(gpu_names())}.  [default: by arch]"
)
@output_option("json", "svg", "html")
@click.option("--ctas", metavar="CLUSTER:RANK,...", help="CTAs to show.  [default: those of the first cluster]")
@click.option(
    "--steps", is_flag=True, help="Do not use the model: show one step per instruction and operation, and no times."
)
@click.option("--cycles", metavar="FIRST:LAST", help="First and last cycle to show.  [default: all]")
def timeline_command(
    kernels: tuple[str, ...],
    shape: Shape,
    config: ConfigOptions,
    gpu_name: str | None,
    outputs: Outputs,
    ctas: str | None,
    steps: bool,
    cycles: str | None,
) -> int:
    """Show a timeline of each warp and unit of some CTAs.

    The timing model predicts it; nothing is measured. JSON opens in Perfetto (ui.perfetto.dev). Several kernels go into
    one SVG picture.
    """
    if not outputs.places:
        raise UsageProblem("name a file for the timeline: -o FILE.json, -o FILE.svg or -o FILE.html")
    first, last = parse_cycles(cycles) if cycles is not None else (0.0, None)
    gpu = find_gpu(gpu_name or usual_gpu(config.arch or "").name)
    asked = _TimelineArguments(gpu, parse_ctas(ctas) if ctas is not None else None, steps)
    if kernels[0].endswith(".toml"):
        refuse_what_kernels_have(kernels[0])
        names, kernels = [], (str(only_launch_file(kernels)),)
    else:
        names = kernels_named(kernels, config.dtype)
    for kind, place in outputs.places:
        if len(names) > 1 and kind != "svg":
            raise UsageProblem(f"-o {place}: the timelines of several kernels are one picture; name it .svg")
    timelines = [_of_kernel(name, shape, config, asked) for name in names] or [_of_file(kernels[0], asked)]
    _require_ctas(asked.ctas, timelines)
    if last is not None or first:
        timelines = [each.within(first, each.end if last is None else last) for each in timelines]
    if not all(timeline.spans for timeline in timelines):
        where = f" in CTAs {ctas}" if ctas else ""
        raise UsageProblem(f"nothing happens there{where}; leave --ctas and --cycles out")
    written = outputs.write(
        json=lambda: as_json(timelines[0]),
        svg=lambda: svg(timelines, first or None, last),
        html=lambda: html(timelines[0]),
    )
    spans = sum(len(timeline.spans) for timeline in timelines)
    kind = "timeline in logical steps" if steps else "predicted timeline"
    if outputs.shows_report:
        summary = f"{kind}, {several(spans, 'span')} of {several(len(timelines[0].ctas), 'CTA')}"
        show_line(Console(), f"{summary}: {', '.join(written.places)}")
    return written.exit_code


def parse_cycles(text: str) -> tuple[float, float | None]:
    """Reads ``FIRST:LAST``; either may be left out."""
    numbers = text.split(":")
    if len(numbers) != 2 or not all(n == "" or (n.isascii() and n.isdecimal() and len(n) < 16) for n in numbers):
        raise UsageProblem(f"--cycles {text!r} is not FIRST:LAST, two whole numbers; write for example 2000:6000")
    first, last = float(numbers[0] or 0), float(numbers[1]) if numbers[1] else None
    if last is not None and last <= first:
        raise UsageProblem(f"--cycles {text}: the last must be above the first")
    return first, last


def _require_ctas(ctas: tuple[CtaKey, ...] | None, timelines: list[Timeline]) -> None:
    there = {cta for timeline in timelines for cta in timeline.ctas}
    missing = [f"{cluster}:{rank}" for cluster, rank in ctas or () if (cluster, rank) not in there]
    if missing:
        raise UsageProblem(
            f"--ctas {','.join(missing)}: the run has no events of this CTA (CLUSTER:RANK); leave it out"
        )


def _of_kernel(kernel: str, shape: Shape, config: ConfigOptions, asked: _TimelineArguments) -> Timeline:
    artifact = build_with_notice([for_gpu(config, asked.gpu).configure(kernel, shape)])[0]
    hertz = asked.gpu["clock.max"] if asked.steps else predict(artifact, shape, asked.gpu).clock.hertz
    recorder = asked.recorder(f"{kernel}, {shape.title}", hertz)
    gpu = asked.gpu.in_steps() if asked.steps else asked.gpu
    simulate(artifact, artifact.plan(shape), gpu, hertz, recorder)
    return recorder.finish()


def _of_file(name: str, asked: _TimelineArguments) -> Timeline:
    recorder = asked.recorder(Path(name).name, asked.gpu["clock.max"])
    gpu = asked.gpu.in_steps() if asked.steps else asked.gpu
    predict_launches(read_launch_file(Path(name)), gpu, trace=recorder)
    return recorder.finish()
