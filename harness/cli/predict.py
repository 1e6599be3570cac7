"""The command ``harness predict`` shows the timing model's predictions for kernels on a GPU. It needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console

from emugpu.cli.options import as_json, given_options
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.render import show_line, show_table
from emugpu.cli.target import only_launch_file
from emugpu.emulator.names import readable_name
from emugpu.errors import EXIT_WRONG_RESULT, UsageProblem
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions
from harness.cli.options import ConfigOptions, Problem, config_options, kernels_or_launch_argument, problem_options
from harness.cli.running import kernels_named
from harness.compile.artifacts import Artifact, build_with_notice
from harness.compile.config import KernelConfig
from harness.model.constants import GpuConstants, find_gpu, gpu_names
from harness.model.power import INPUTS
from harness.model.predict import Prediction, predict, predict_launches
from harness.model.what_if import WhatIf, parse_changes
from harness.problem import Shape


@click.command("predict")
@kernels_or_launch_argument
@problem_options("inputs", note=" Their kind changes the predicted power.")
@config_options
@click.option("--gpu", "gpu_name", required=True, metavar="NAME", help=f"GPU to predict for: {', '.join(gpu_names())}.")
@click.option(
    "--what-if",
    "what_if",
    multiple=True,
    metavar="NAME=VALUE|all",
    help="Predict again with another value of a constant (l2.bandwidth=0.5x) or an option (stages=3); repeatable.",
)
@output_option("json")
def predict_command(
    kernels: tuple[str, ...],
    problem: Problem,
    config: ConfigOptions,
    gpu_name: str,
    what_if: tuple[str, ...],
    outputs: Outputs,
) -> int:
    """Predict cycles and TFLOPS of KERNELs, or of a launch file.

    Nothing is measured: a model runs the PTX on emulated multiprocessors with a clock. The results of LAUNCH.toml are
    checked, too.
    """
    gpu = find_gpu(gpu_name)
    if kernels[0].endswith(".toml"):
        return _predict_file(kernels, gpu, outputs)
    inputs, shape = problem.inputs or "normal", problem.shape
    if inputs not in INPUTS:
        raise UsageProblem(f"--problem inputs={inputs}: the model of power knows {', '.join(INPUTS)}")
    config = for_gpu(config, gpu)
    changes = parse_changes(what_if, gpu)
    names = kernels_named(kernels, config.dtype)
    configs = [config.configure(kernel, shape) for kernel in names]
    changed = [(n, change, _changed(name, config, shape, change)) for n, name in enumerate(names) for change in changes]
    artifacts = build_with_notice([*configs, *(each for _, _, each in changed)])
    found = [predict(artifact, shape, gpu, inputs) for artifact in artifacts[: len(configs)]]
    tried = [
        ChangedPrediction(n, change, _predict_changed(artifact, shape, gpu, inputs, change))
        for (n, change, _), artifact in zip(changed, artifacts[len(configs) :], strict=True)
    ]
    return _show_and_write(found, tried, outputs)


def _predict_file(words: Sequence[str], gpu: GpuConstants, outputs: Outputs) -> int:
    refuse_what_kernels_have(words[0], "what_if")
    what = read_launch_file(only_launch_file(words))
    outcome, predicted = predict_launches(what, gpu, EmulationOptions(strict=False))
    code = _show_and_write(predicted, (), outputs, f"the results are {'as expected' if outcome.passed else 'WRONG'}")
    return code if outcome.passed else EXIT_WRONG_RESULT


def refuse_what_kernels_have(file: str, *more: str) -> None:
    """Refuses options of kernels beside a launch file, which has its own, so that none is ignored."""
    ignored = given_options("shape", "settings", "words", "dtype", *more)
    if ignored:
        raise UsageProblem(f"{file} defines the launch; leave {', '.join(ignored)} out")


def _show_and_write(
    found: Sequence[Prediction], tried: Sequence[ChangedPrediction], outputs: Outputs, last: str = ""
) -> int:
    """Shows and writes the predictions. Returns the exit code. ``last`` is a line below the tables."""
    data = {"predictions": [_as_dict(n, each, tried) for n, each in enumerate(found)]}
    written = outputs.write(json=lambda: as_json(data))
    if outputs.shows_report:
        show(Console(), found, tried)
        if last:
            show_line(Console(), last)
        written.show(Console())
    return written.exit_code


@dataclass(frozen=True)
class ChangedPrediction:
    """A prediction with a changed value. ``number`` is that of the prediction it is compared with."""

    number: int
    change: WhatIf
    prediction: Prediction


def _predict_changed(artifact: Artifact, shape: Shape, gpu: GpuConstants, inputs: str, change: WhatIf) -> Prediction:
    """Predicts with a changed value. Raises UsageProblem if the model cannot compute with it, such as a bandwidth of
    zero.
    """
    try:
        return predict(artifact, shape, gpu, inputs, change.constants)
    except ArithmeticError as error:
        raise UsageProblem(
            f"--what-if '{change.text}': the model has no result ({error}); use a value nearer to the constant's own"
        ) from None


def _changed(kernel: str, config: ConfigOptions, shape: Shape, change: WhatIf) -> KernelConfig:
    return config.but(**change.options).configure(kernel, shape)


def _as_dict(number: int, prediction: Prediction, tried: Sequence[ChangedPrediction]) -> dict[str, Any]:
    mine = [each for each in tried if each.number == number]
    if not mine:
        return prediction.as_dict()
    rows = [
        {
            "change": each.change.text,
            "cycles": round(each.prediction.cycles),
            "cycles_ratio": round(each.prediction.cycles / prediction.cycles, 4),
            "tflops": round(each.prediction.tflops, 1),
        }
        for each in mine
    ]
    return {**prediction.as_dict(), "what_if": rows}


def for_gpu(config: ConfigOptions, gpu: GpuConstants) -> ConfigOptions:
    """Sets the architecture of the GPU."""
    if config.arch not in (None, gpu.arch):
        raise UsageProblem(f"arch={config.arch}: {gpu.title} runs {gpu.arch}; leave arch out")
    return config.but(arch=gpu.arch)


def show(console: Console, found: Sequence[Prediction], tried: Sequence[ChangedPrediction] = ()) -> None:
    """Shows tables of the predictions, of where their time goes, and of the changed values."""
    first = found[0]
    what, more = _problem(first)
    error = first.gpu.error_in_words(first.error_percent)
    show_line(console, f"Predicted, not measured: {first.gpu.title}{what}; {error}{more}.")
    columns = ("", *(readable_name(each.kernel)[:LONGEST_NAME] for each in found))
    rows = [
        ("predicted cycles", *(f"{each.cycles:,.0f} {each.band}" for each in found)),
        ("predicted microseconds", *(f"{1e6 * each.seconds:,.2f}" for each in found)),
        ("predicted clock", *(f"{each.clock.hertz / 1e9:.2f} GHz" for each in found)),
        ("predicted power", *(_power(each) for each in found)),
        ("predicted TFLOPS", *(f"{_tflops(each)} {each.band}" for each in found)),
    ]
    show_table(console, "figures of a launch", columns, rows)
    shares = [
        (limit.name, *(f"{100 * each.limits[number].share:.1f} %" for each in found))
        for number, limit in enumerate(first.limits)
    ]
    show_table(console, "\nwhere the predicted cycles go", columns, shares)
    for number, each in enumerate(found):
        mine = [one for one in tried if one.number == number]
        if mine:
            title = f"\nwhat if: predicted cycles of {each.kernel}, largest change first"
            show_table(console, title, ("change", "cycles", "", "faster | slower", "TFLOPS"), _tornado(each, mine))


def _problem(prediction: Prediction) -> tuple[str, str]:
    """Returns the problem column: the shape of our kernels, or the name of a launch file."""
    if prediction.label:
        m, n, k = prediction.shape
        return f", C[{m},{n}], K={k}", ""
    return "", ", and by more for anything but a GEMM with tensor copies"


def _tflops(prediction: Prediction) -> str:
    return f"{prediction.tflops:,.{0 if prediction.tflops >= 10 else 3}f}"


def _power(prediction: Prediction) -> str:
    return f"{prediction.clock.watts:.0f} W{', limit' if prediction.clock.limited else ''}"


LONGEST_NAME = 40
BAR = 12
"""Width of the longest bar, in columns."""


def _tornado(base: Prediction, tried: Sequence[ChangedPrediction]) -> Iterator[tuple[str, ...]]:
    """Yields rows with bars: to the left is faster, to the right is slower."""
    ratios = {id(each): each.prediction.cycles / base.cycles - 1 for each in tried}
    largest = max(0.001, *map(abs, ratios.values()))
    for each in sorted(tried, key=lambda one: -abs(ratios[id(one)])):
        ratio = ratios[id(each)]
        bar = "█" * round(BAR * abs(ratio) / largest)
        yield (
            each.change.text,
            f"{each.prediction.cycles:,.0f}",
            f"{100 * ratio:+.1f} %",
            f"{bar if ratio < 0 else '':>{BAR}}│{bar if ratio >= 0 else '':<{BAR}}",
            f"{each.prediction.tflops:,.0f}",
        )
