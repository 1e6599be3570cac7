"""``harness timeline``: a run as the timing model sees it, as a trace, a picture or a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from emugpu.cli.options import FiniteRange, check_output, given_options, write_output
from emugpu.cli.render import several, show_line
from emugpu.errors import UsageProblem
from emugpu.gpus import usual_gpu
from emugpu.launch.launch_file import read_launch_file
from harness.cli.options import KERNEL_WORD, ConfigOptions, config_options, product_option
from harness.cli.predict import for_gpu
from harness.compile.artifacts import build_with_notice
from harness.compile.catalog import KERNELS, kernels_of
from harness.compile.config import OPTIONS
from harness.model.constants import Gpu, find_gpu, gpu_names
from harness.model.predict import predict, predict_launches
from harness.model.simulate import simulate
from harness.model.timeline import CtaKey, Recorder, Timeline
from harness.model.timeline_html import html
from harness.model.timeline_svg import svg
from harness.model.trace_events import as_json
from harness.problem import Shape

STEP_HERTZ = 1e6
"""A step is drawn as a microsecond where the format knows nothing else."""
FORMATS = (".json", ".svg", ".html")


def parse_ctas(text: str) -> tuple[CtaKey, ...]:
    """Reads ``CLUSTER:RANK,...``; a rank alone is one of cluster 0."""
    found = []
    for word in text.split(","):
        cluster, colon, rank = word.rpartition(":")
        numbers = [cluster if colon else "0", rank]
        if not all(n.isascii() and n.isdecimal() and len(n) < 8 for n in numbers):
            raise UsageProblem(f"--ctas '{text}': write ranks of cluster 0, or CLUSTER:RANK, with commas between them")
        found.append((int(numbers[0]), int(numbers[1])))
    return tuple(found)


@dataclass(frozen=True)
class _Asked:
    gpu: Gpu
    ctas: tuple[CtaKey, ...] | None
    steps: bool

    def recorder(self, what: str, hertz: float) -> Recorder:
        if self.steps:
            return Recorder(f"{what}: logical steps, no times", STEP_HERTZ, self.ctas, "steps")
        return Recorder(f"{what}: predicted for {self.gpu.title}", hertz, self.ctas)


@click.command("timeline")
@click.argument("what", type=KERNEL_WORD, metavar="KERNEL|LAUNCH.toml|all")
@product_option
@config_options
@click.option("--gpu", "gpu_name", metavar="NAME", help=f"One of {', '.join(gpu_names())}.  [default: by --arch]")
@click.option(
    "-o", "--output", "target", required=True, metavar="FILE.json|.svg|.html", help="Trace events, a picture, a page."
)
@click.option("--ctas", metavar="CLUSTER:RANK,...", help="CTAs to show.  [default: those of the first cluster]")
@click.option("--steps", is_flag=True, help="Without the model: a step for each instruction and operation, no times.")
@click.option("--from", "first", type=FiniteRange(0), default=0.0, help="First cycle to show.")
@click.option("--to", "last", type=FiniteRange(0, min_open=True), help="Last cycle to show.")
def timeline_command(
    what: str,
    shape: Shape,
    config: ConfigOptions,
    gpu_name: str | None,
    target: str,
    ctas: str | None,
    steps: bool,
    first: float,
    last: float | None,
) -> None:
    """Show a timeline of each warp and unit of some CTAs.

    The timing model predicts it. JSON opens in Perfetto (ui.perfetto.dev). The series one under another (all) is a
    picture, SVG. Nothing is measured.
    """
    if Path(target).suffix not in FORMATS:
        raise UsageProblem(f"--output {target!r}: the name must end in {', '.join(FORMATS)}")
    check_output(target, "--output", "name one")
    if last is not None and last <= first:
        raise UsageProblem(f"--to {last:g} must be above --from {first:g}")
    gpu = find_gpu(gpu_name or usual_gpu(config.arch or "").name)
    _refuse_what_would_be_ignored(what)
    asked = _Asked(gpu, parse_ctas(ctas) if ctas is not None else None, steps)
    if what == "all" and Path(target).suffix != ".svg":
        raise UsageProblem(f"--output {target}: the timelines of all kernels are one picture; name it .svg")
    timelines = _timelines(what, shape, config, asked)
    _require_ctas(asked.ctas, timelines)
    if last is not None or first:
        timelines = [each.within(first, each.end if last is None else last) for each in timelines]
    if not all(timeline.spans for timeline in timelines):
        where = f" in CTAs {ctas}" if ctas else ""
        raise UsageProblem(f"nothing happens there{where}; leave --ctas, --from and --to out")
    if Path(target).suffix == ".svg":
        text = svg(timelines, first or None, last)
    else:
        text = {".json": as_json, ".html": html}[Path(target).suffix](timelines[0])
    write_output(text, target)
    spans = sum(len(timeline.spans) for timeline in timelines)
    kind = "timeline in logical steps" if steps else "predicted timeline"
    show_line(Console(), f"{kind}, {several(spans, 'span')} of {several(len(timelines[0].ctas), 'CTA')}: {target}")


def _refuse_what_would_be_ignored(what: str) -> None:
    """Refuses options of a kernel that is compiled here, where there is none."""
    ignored = given_options("shape", "preset", *OPTIONS) if what.endswith(".toml") else []
    if ignored:
        raise UsageProblem(f"{what} says what has run; leave {', '.join(ignored)} out")


def _require_ctas(ctas: tuple[CtaKey, ...] | None, timelines: list[Timeline]) -> None:
    there = {cta for timeline in timelines for cta in timeline.ctas}
    missing = [f"{cluster}:{rank}" for cluster, rank in ctas or () if (cluster, rank) not in there]
    if missing:
        raise UsageProblem(
            f"--ctas {','.join(missing)}: nothing was seen of such a CTA, named CLUSTER:RANK; leave it out"
        )


def _timelines(what: str, shape: Shape, config: ConfigOptions, asked: _Asked) -> list[Timeline]:
    if what != "all" and what not in KERNELS:
        return [_of_file(what, asked)]
    return [
        _of_kernel(kernel, shape, config, asked) for kernel in (kernels_of(config.dtype) if what == "all" else [what])
    ]


def _of_kernel(kernel: str, shape: Shape, config: ConfigOptions, asked: _Asked) -> Timeline:
    artifact = build_with_notice([for_gpu(config, asked.gpu).configure(kernel, shape)])[0]
    hertz = asked.gpu["clock.max"] if asked.steps else predict(artifact, shape, asked.gpu).clock.hertz
    recorder = asked.recorder(f"{kernel}, {shape.title}", hertz)
    gpu = asked.gpu.in_steps() if asked.steps else asked.gpu
    simulate(artifact, artifact.plan(shape), gpu, hertz, recorder)
    return recorder.finish()


def _of_file(name: str, asked: _Asked) -> Timeline:
    if not name.endswith(".toml"):
        raise UsageProblem(f"'{name}' is neither a kernel ({', '.join(KERNELS)}) nor a launch file (.toml)")
    recorder = asked.recorder(Path(name).name, asked.gpu["clock.max"])
    gpu = asked.gpu.in_steps() if asked.steps else asked.gpu
    predict_launches(read_launch_file(Path(name)), gpu, trace=recorder)
    return recorder.finish()
