"""The part of the page with a timeline of each kernel: of which GPUs and runs, and words where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emugpu.errors import CannotRun, ReportedError
from emugpu.gpus import usual_gpu
from harness.compile.artifacts import build, is_built
from harness.compile.catalog import kernels_of
from harness.compile.config import KernelConfig, configure
from harness.model.constants import Gpu, find_gpu, gpu_names
from harness.model.measured import Trace, find_traces, parse_run, read_trace
from harness.model.measured import timeline as measured_timeline
from harness.model.simulate import simulate
from harness.model.survey_archive import Survey
from harness.model.timeline import CtaKey, Recorder, Timeline
from harness.problem import Shape
from harness.report.timeline_picture import picture
from harness.report.timelines import compare

CTA: CtaKey = (0, 0)
"""The CTA that is shown: the first of the first cluster."""
ARCHIVES = "*.tar.gz"
SHAPE = Shape(4096, 4096, 4096)
"""The problem where nothing was measured."""
DISTURBED = 1.1
"""A kernel that is slower than that by writing its events is not what it was; the page says so."""


@dataclass(frozen=True)
class KernelTimeline:
    """One kernel on one GPU. name: of its place in the page. status: predicted, measured or both. missing: sentences
    on what is not shown. rows: the figures under columns."""

    name: str
    kernel: str
    title: str
    status: tuple[str, ...]
    caption: str
    svg: str
    missing: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class GpuTimelines:
    """All kernels on one GPU. missing: a sentence for each thing that there is not."""

    gpu: str
    kernels: tuple[KernelTimeline, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    """What is to be drawn. surveys: by the model's name of their GPU. broken: what is wrong with other archives."""

    folder: Path
    gpus: tuple[Gpu, ...]
    surveys: Mapping[str, Survey]
    broken: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.gpus) * len(kernels_of(None))

    def draw(self, each: Callable[[], None]) -> list[GpuTimelines]:
        """each: is called after every kernel."""
        return [_of_gpu(gpu, self, each) for gpu in self.gpus]


def plan_timelines(folder: Path, architectures: Iterable[str]) -> Planned:
    """The GPUs that were surveyed, as archives in the folder say, and the usual one of each architecture."""
    surveys, broken = _surveys(folder)
    usual = [usual_gpu(arch).name for arch in sorted(architectures, reverse=True)]
    return Planned(folder, tuple(find_gpu(name) for name in dict.fromkeys([*surveys, *usual])), surveys, tuple(broken))


def _surveys(folder: Path) -> tuple[dict[str, Survey], list[str]]:
    """By the model's name of their GPU, the newest file name of each; and what is wrong with the others."""
    named = {find_gpu(name).title: name for name in gpu_names()}
    found, broken = {}, []
    for path in sorted(folder.glob(ARCHIVES)):
        try:
            survey = Survey(path)
        except ReportedError as error:
            broken.append(f"{path.name} is not shown: {error}.")
            continue
        gpu = survey.gpu.get("name")
        if gpu in named:
            found[named[gpu]] = survey
        else:
            broken.append(f"{path.name} is not shown: the timing model has no constants for its GPU, {gpu}.")
    return found, broken


def _of_gpu(gpu: Gpu, planned: Planned, each: Callable[[], None]) -> GpuTimelines:
    found, missing = [], list(planned.broken)
    survey, folder = planned.surveys.get(gpu.name), planned.folder.resolve()
    if survey is None:
        missing.append(
            f"All of this is predicted; {gpu.error_in_words(100 * gpu['model.error'])}: {folder.name}/ has "
            f"no archive of a survey of an {gpu.title}. On a machine with one, `harness survey -o "
            f"{folder.name}/nvidia-{gpu.name}-survey.tar.gz` measures."
        )
    for kernel in kernels_of(None):
        made = _of_kernel(kernel, gpu, survey)
        if isinstance(made, KernelTimeline):
            found.append(made)
        else:
            missing += made
        each()
    return GpuTimelines(gpu.title, tuple(found), tuple(dict.fromkeys(missing)))


def _of_kernel(kernel: str, gpu: Gpu, survey: Survey | None) -> KernelTimeline | list[str]:
    """Or why there is none."""
    missing: list[str] = []
    trace = None
    try:
        trace = _trace(kernel, gpu, survey) if survey else None
    except ReportedError as error:
        missing.append(f"Not measured: {error}.")
    config, shape = parse_run(trace.name, gpu.arch) if trace else (_default(kernel, gpu), SHAPE)
    hertz = trace.hertz if trace else gpu["clock.max"]
    timelines = []
    try:
        timelines.append(predicted_timeline(config, shape, gpu, hertz))
    except ReportedError as error:
        missing.append(f"Not predicted: {error}.")
    if trace:
        timelines.append(measured_timeline(trace, {CTA}))
    told = [timeline for timeline in timelines if timeline.spans]
    if not told:
        return [f"{kernel} has no timeline. {sentence}" for sentence in missing]
    return _shown(config, shape, gpu, trace, told, missing)


def predicted_timeline(config: KernelConfig, shape: Shape, gpu: Gpu, hertz: float) -> Timeline:
    """Simulates `CTA` at that clock. Raises CannotRun for a kernel that is not compiled: a report compiles nothing."""
    if not is_built(config):
        raise CannotRun(
            f"{config.label} has not been compiled here; `harness predict {config.kernel} --gpu {gpu.name} "
            f"--shape {shape.m},{shape.n},{shape.k}` does that"
        )
    artifact = build([config])[0]
    recorder = Recorder(f"{config.kernel}, {shape}: predicted for {gpu.title}", hertz, {CTA})
    simulate(artifact, artifact.plan(shape), gpu, hertz, recorder)
    return recorder.finish()


def _default(kernel: str, gpu: Gpu) -> KernelConfig:
    return configure(kernel, arch=gpu.arch, shape=SHAPE)


def _trace(kernel: str, gpu: Gpu, survey: Survey) -> Trace:
    """The run of the kernel as it is by default. Raises ReportedError if the survey has none that can be shown."""
    names = [name for name in find_traces(survey) if name.startswith(f"{kernel} at ")]
    if not names:
        raise CannotRun(f"{survey.path.name} has no events of {kernel} as it is by default")
    trace = read_trace(survey, names[0])
    if not trace.same_result:
        raise CannotRun(f"in {survey.path.name} the kernel that writes its events had another result")
    if not _same(parse_run(trace.name, gpu.arch)[0], trace.plan.config):
        raise CannotRun(f"{survey.path.name} has {kernel} in a configuration that is its default no more")
    return trace


def _same(config: KernelConfig, launched: Mapping[str, Any]) -> bool:
    """Whether a launch plan is one of that configuration; the plan's tile has K, too."""
    asked = {name: value for name, value in config.as_dict().items() if name in launched}
    return all(
        list(launched[name])[: len(v)] == v if isinstance(v, list) else launched[name] == v for name, v in asked.items()
    )


def _shown(
    config: KernelConfig,
    shape: Shape,
    gpu: Gpu,
    trace: Trace | None,
    told: Sequence[Timeline],
    missing: Sequence[str],
) -> KernelTimeline:
    compared = compare(*told)
    both = " and ".join(compared.sources)
    name = f"timeline-{config.kernel}-{gpu.name}"
    title = f"{config.kernel} on an {gpu.title}, {shape.title}: {both}"
    lanes = {
        "predicted": "The lane is hollow: predicted. Nothing of it was measured.",
        "measured": "The lane is solid: measured.",
        "predicted and measured": "Upper lane of each row, hollow: predicted. Lower lane, solid: measured.",
    }[both]
    words = [lanes, f"{config.label}; CTA {CTA[1]} of cluster {CTA[0]}, at {told[-1].hertz / 1e9:.2f} GHz."]
    if trace and trace.slowdown is not None:
        slower = f"Writing the events down made the measured kernel {100 * (trace.slowdown - 1):.0f} % slower"
        words.append(slower + (", so it falls behind more and more." if trace.slowdown > DISTURBED else "."))
    described = f"{' '.join(words)} Rows: {', '.join(row.name for row in compared.rows)}."
    return KernelTimeline(
        name,
        config.kernel,
        title,
        compared.sources,
        " ".join(words),
        picture(compared, name, title, described),
        tuple(missing),
        ("", *compared.sources),
        compared.figures,
    )
