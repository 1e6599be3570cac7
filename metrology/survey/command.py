"""``harness survey``: asks a GPU everything that only a GPU can settle, and reads what it answered."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import click
from rich.console import Console

from harness.build.catalog import ARCHITECTURES
from harness.build.compiler import find_gpus, find_mojo
from harness.cli.options import NamedPath, check_folder, check_output, given_options, write_output
from harness.cli.render import show_line
from harness.errors import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, CannotRun, UsageProblem
from harness.gpus import arch_of_gpu
from harness.timing.constants import Constant, Gpu, find_gpu, gpu_names
from harness.timing.survey_archive import StepResult, Survey
from metrology.survey import archive, run
from metrology.survey.bundle import bundle
from metrology.survey.pack import pack
from metrology.survey.parts import PARTS
from metrology.survey.reading.constants import as_toml, derive, put_into
from metrology.survey.reading.findings import findings, predictions
from metrology.survey.reading.recording import as_json, recording
from metrology.survey.reading.report import report
from metrology.survey.runs import CHANGES, checks, runs

NAMES = [part.name for part in PARTS]
ENDINGS = (".tar.gz", ".tgz")
NAME_OF = {"target": "--output", "source": "--read", "bundle_folder": "--bundle"}
OPTIONS_OF = {
    "target": ("seconds", "names", "packed"),
    "source": ("report_path", "constants_path", "recording_path", "probes_path", "predict", "gpu_name"),
    "bundle_folder": ("arch",),
}


@click.command("survey")
@click.option("-o", "--output", "target", metavar="FILE.tar.gz", help="Survey this machine's GPU; write the archive.")
@click.option("--seconds", default=run.SECONDS, show_default=True, type=click.IntRange(10), help="For all parts.")
@click.option(
    "--part",
    "names",
    multiple=True,
    type=click.Choice(NAMES),
    metavar="NAME",
    help=f"Only this part; may be repeated. There are {', '.join(NAMES)}.",
)
@click.option("--packed", type=NamedPath(exists=True, file_okay=False, path_type=Path), help="Kernels compiled before.")
@click.option(
    "--bundle",
    "bundle_folder",
    type=NamedPath(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write a folder that surveys a machine without this project: copy it there and run its run.sh.",
)
@click.option("--arch", type=click.Choice(list(CHANGES)), help="Of the bundle.  [default: the first]")
@click.option("--read", "source", type=NamedPath(path_type=Path), metavar="FILE.tar.gz", help="Read an archive.")
@click.option(
    "--report",
    "report_path",
    metavar="FILE|-",
    help="Of --read: Markdown.  [default: -, unless something else goes there]",
)
@click.option("--constants", "constants_path", metavar="FILE.toml|-", help="Of --read: constants for the timing model.")
@click.option(
    "--recording", "recording_path", metavar="FILE.json|-", help="Of --read: the kernels' times and counters."
)
@click.option("--probes", "probes_path", metavar="FILE.json|-", help="Of --read: what the GPU answered to the probes.")
@click.option("--predict", is_flag=True, help="Of --read: predict every run, too, which takes minutes.")
@click.option("--gpu", "gpu_name", metavar="NAME", help=f"Of --read: compare with {', '.join(gpu_names())}.")
def survey_command(
    target: str | None,
    seconds: int,
    names: tuple[str, ...],
    packed: Path | None,
    bundle_folder: Path | None,
    arch: str | None,
    source: Path | None,
    report_path: str | None,
    constants_path: str | None,
    recording_path: str | None,
    probes_path: str | None,
    predict: bool,
    gpu_name: str | None,
) -> int:
    """Characterize a GPU, or read the archive of one.

    With -o: micro-benchmarks, kernels, probes, counters, timelines, power and tests, each in a process of its own under
    a limit of its own. With --read: what the archive says, and where the emulator or the timing model was wrong.
    """
    if sum(each is not None for each in (target, source, bundle_folder)) != 1:
        raise UsageProblem(
            "survey does one thing: -o FILE to measure, --read FILE, or --bundle FOLDER; name one of them"
        )
    _refuse_what_would_be_ignored({"target": target, "source": source, "bundle_folder": bundle_folder})
    if bundle_folder is not None:
        _bundle(bundle_folder, arch or next(iter(CHANGES)))
        show_line(Console(), f"copy {bundle_folder} to the machine with the GPU, and there: sh run.sh survey.tar.gz")
        return EXIT_OK
    if source is not None:
        return _read(source, _Outputs(report_path, constants_path, recording_path, probes_path), gpu_name, predict)
    assert target is not None
    return _measure(target, seconds, names, packed)


def _refuse_what_would_be_ignored(asked: Mapping[str, object]) -> None:
    """Options of one of the three things that survey does, where it is to do another."""
    for mode, options in OPTIONS_OF.items():
        ignored = given_options(*options) if asked[mode] is None else []
        if ignored:
            raise UsageProblem(f"{', '.join(ignored)}: of {NAME_OF[mode]}, which is not asked for; leave it out")


def _bundle(folder: Path, arch: str) -> None:
    """Whole or not there: compiling takes minutes, and may fail."""
    check_folder(folder, "--bundle")
    if folder.exists() and any(folder.iterdir()):
        raise UsageProblem(f"--bundle {folder}: is not empty; name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        made = Path(temporary, "bundle")
        bundle(made, arch)
        made.rename(folder)


# ---- measuring ----


def _measure(target: str, seconds: int, names: tuple[str, ...], packed: Path | None) -> int:
    if not target.endswith(ENDINGS):
        raise UsageProblem(f"--output {target!r}: the name must end in {' or '.join(ENDINGS)}")
    check_output(target, "--output", "name one")
    parts = [part for part in PARTS if not names or part.name in names]
    gpus = find_gpus()
    if not gpus:
        raise CannotRun("there is no GPU here to survey; `harness survey --bundle FOLDER` prepares another machine")
    console = Console()

    def show(ended: StepResult) -> None:
        show_line(console, run.line(ended))

    with tempfile.TemporaryDirectory(prefix="survey-kernels-") as temporary:
        if packed is None and any(part.packed for part in parts):
            packed = _pack(Path(temporary), gpus[0].compute_capability, console)
        ended = run.survey(Path(target), packed, seconds, parts, show)
    failed = [each for each in ended if each.status in (archive.FAILED, archive.TIMED_OUT)]
    show_line(console, f"{len(ended)} parts, {len(failed)} failed: {target}")
    return EXIT_CANNOT_RUN if failed else EXIT_OK


def _pack(folder: Path, capability: str, console: Console) -> Path | None:
    """Compiled kernels for this GPU, None where there is no compiler or no list of runs."""
    try:
        arch = arch_of_gpu(*(int(part) for part in capability.split(".")))
    except CannotRun as error:
        show_line(console, f"no kernels: {error}")
        return None
    if arch not in CHANGES or find_mojo() is None:
        why = "there is no Mojo compiler here" if arch in CHANGES else f"there is no list of runs for {arch}"
        show_line(console, f"no kernels: {why}")
        return None
    show_line(console, f"compiling kernels for {ARCHITECTURES[arch].gpus} ...")
    pack([*runs(arch), *checks(arch)], arch, folder)
    return folder


# ---- reading ----


@dataclass(frozen=True)
class _Outputs:
    """Where what was asked for goes; None: it was not."""

    report: str | None
    constants: str | None
    recording: str | None
    probes: str | None

    def check(self) -> None:
        for field in fields(self):
            check_output(getattr(self, field.name), f"--{field.name}")
        shown = [f"--{field.name}" for field in fields(self) if getattr(self, field.name) == "-"]
        if len(shown) > 1:
            raise UsageProblem(f"only one of {', '.join(shown)} can be - (the screen)")

    def write(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            write_output(text, getattr(self, name))


def _read(source: Path, outputs: _Outputs, gpu_name: str | None, predict: bool) -> int:
    if outputs.report is None and "-" not in (outputs.constants, outputs.recording, outputs.probes):
        outputs = replace(outputs, report="-")
    outputs.check()
    survey = Survey(source)
    with survey.reading():
        model = find_gpu(gpu_name) if gpu_name is not None else _model_of(survey)
        measured = derive(survey)
        texts = _data(survey, outputs, measured, model)
        found = findings(survey, measured, model)
        measured_by_kernels = recording(survey)
    verdicts: list[str] = []
    if predict:
        if model is None:
            raise UsageProblem(f"--predict: name the GPU whose model is asked: --gpu {'|'.join(gpu_names())}")
        missed, verdicts = predictions(measured_by_kernels, model)
        found += missed
    if outputs.report:
        with survey.reading():
            texts["report"] = report(survey, measured, found, verdicts)
    outputs.write(texts)
    return EXIT_FINDINGS if found else EXIT_OK


def _data(survey: Survey, outputs: _Outputs, measured: dict[str, Constant], model: Gpu | None) -> dict[str, str]:
    """What is asked for beside the report; all of it before any is written."""
    texts: dict[str, str] = {}
    if outputs.constants:
        if model is None:
            raise UsageProblem(
                f"--constants: name the GPU whose other constants are kept: --gpu {'|'.join(gpu_names())}"
            )
        texts["constants"] = as_toml(put_into(model, measured, survey))
    if outputs.recording:
        kept = recording(survey)
        if kept is None:
            raise CannotRun(f"{survey.path}: the part `kernels` left no times")
        texts["recording"] = as_json(kept)
    if outputs.probes:
        answers = survey.text("probes.json")
        if answers is None:
            raise CannotRun(f"{survey.path}: the part `probes` left no answers")
        texts["probes"] = answers
    return texts


def _model_of(survey: Survey) -> Gpu | None:
    """The GPU of the timing model that the surveyed one is, by its name."""
    name = survey.gpu.get("name", "")
    return next((gpu for gpu in map(find_gpu, gpu_names()) if gpu.title == name), None)
