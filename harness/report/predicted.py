"""What the timing model predicts of one CTA of a kernel, kept in the build cache: a second of work for each kernel."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from harness import cache
from harness.build.artifacts import Artifact, build, is_built
from harness.build.config import KernelConfig
from harness.errors import CannotRun
from harness.experiments.job import sources
from harness.problem import Shape
from harness.timing.constants import Gpu
from harness.timing.simulate import simulate
from harness.timing.timeline import CtaKey, Recorder, Span, Timeline

CTA: CtaKey = (0, 0)
"""The CTA that is shown: the first of the first cluster."""


def predicted_timeline(config: KernelConfig, shape: Shape, gpu: Gpu, hertz: float) -> Timeline:
    """Spans of `CTA` at that clock, without flows and counters.

    Raises CannotRun if the kernel has not been compiled: a report compiles nothing.
    """
    if not is_built(config):
        raise CannotRun(
            f"{config.label} has not been compiled here; `harness predict {config.kernel} --gpu {gpu.name} "
            f"--shape {shape.m},{shape.n},{shape.k}` does that"
        )
    artifact = build([config])[0]
    place = cache.place("timelines", f"{_key(artifact, shape, gpu, hertz)}.json")
    if cache.is_whole(place):
        return _from_json(place.read_text(encoding="utf-8"))
    recorder = Recorder(f"{config.kernel}, {shape}: predicted for {gpu.title}", hertz, {CTA})
    simulate(artifact, artifact.plan(shape), gpu, hertz, recorder)
    text = _as_json(recorder.finish())
    _keep(text, place)
    return _from_json(text)


def _key(artifact: Artifact, shape: Shape, gpu: Gpu, hertz: float) -> str:
    """A hash of all that can change the timeline."""
    registers = artifact.statistics().get("registers")
    constants = sorted((name, constant.value) for name, constant in gpu.constants.items())
    words = (sources(), artifact.ptx_sha256, artifact.plan_json(shape), constants, gpu.gpcs, hertz, registers)
    return hashlib.blake2b("\0".join(map(str, words)).encode(), digest_size=16).hexdigest()


def _keep(text: str, place: Path) -> None:
    try:
        with cache.temporary_folder() as temporary:
            made = Path(temporary, place.name)
            made.write_text(text, encoding="utf-8")
            cache.publish_file(made, place)
    except (OSError, CannotRun):
        pass  # a full disk costs the next report a second, and not this one its timeline


def _as_json(timeline: Timeline) -> str:
    names = list(dict.fromkeys((span.row, span.name, span.kind) for span in timeline.spans))
    index = {name: number for number, name in enumerate(names)}
    spans = [
        (index[span.row, span.name, span.kind], round(span.start, 1), round(span.end, 1)) for span in timeline.spans
    ]
    about = {"title": timeline.title, "hertz": timeline.hertz, "names": names, "spans": spans}
    return json.dumps(about, allow_nan=False, separators=(",", ":"))


def _from_json(text: str) -> Timeline:
    data: dict[str, Any] = json.loads(text)
    names = data["names"]
    spans = [Span(CTA, row, name, kind, a, b) for number, a, b in data["spans"] for row, name, kind in [names[number]]]
    return Timeline(data["title"], "cycles", data["hertz"], spans)
