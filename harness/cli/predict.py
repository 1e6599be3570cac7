"""``harness predict``: what the timing model says of kernels on a GPU, whether or not there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from emugpu.cli.options import FiniteRange, as_json, check_output, json_option, write_output
from emugpu.cli.render import show_line
from emugpu.emulator.names import readable_name
from emugpu.errors import EXIT_OK, EXIT_WRONG_RESULT, UsageProblem
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions
from harness.cli.options import ConfigOptions, config_options, product_option, what_argument
from harness.cli.running import kernels_named, one_launch_file, refuse_what_kernels_have
from harness.compile.artifacts import Artifact, build_with_notice
from harness.compile.config import KernelConfig
from harness.model.constants import Gpu, find_gpu, gpu_names
from harness.model.power import INPUTS
from harness.model.predict import Prediction, predict, predict_launches
from harness.model.what_if import Change, parse_changes
from harness.problem import Shape


@click.command("predict")
@what_argument
@product_option
@config_options
@click.option("--gpu", "gpu_name", required=True, metavar="NAME", help=f"One of {', '.join(gpu_names())}.")
@click.option(
    "--inputs",
    type=click.Choice(list(INPUTS)),
    default="normal",
    show_default=True,
    help="Input distribution; affects the power estimate.",
)
@click.option(
    "--what-if",
    "what_if",
    multiple=True,
    metavar="NAME=VALUE|all",
    help="Predict again with a constant (l2.bandwidth=0.5x) or an option (stages=3) changed; may be repeated.",
)
@click.option("--timeout", type=FiniteRange(1), help="Seconds a launch of LAUNCH.toml may take.  [default: no limit]")
@json_option
def predict_command(
    kernels: tuple[str, ...],
    shape: Shape,
    config: ConfigOptions,
    gpu_name: str,
    inputs: str,
    what_if: tuple[str, ...],
    timeout: float | None,
    json_path: str | None,
) -> int:
    """Predict cycles and TFLOPS of KERNELs, or of a launch file.

    Nothing is measured: a model runs the compiled kernel on emulated multiprocessors with a clock. With --what-if it
    says what would change most. The results of LAUNCH.toml are checked, too.
    """
    check_output(json_path, "--json")
    gpu = find_gpu(gpu_name)
    file = one_launch_file(kernels)
    if file:
        refuse_what_kernels_have(file)
        options = EmulationOptions(strict=False, timeout=timeout)
        outcome, predicted = predict_launches(read_launch_file(file), gpu, options)
        _tell(predicted, (), json_path, f"the results are {'as expected' if outcome.passed else 'WRONG'}")
        return EXIT_OK if outcome.passed else EXIT_WRONG_RESULT
    if timeout is not None:
        raise UsageProblem(f"--timeout {timeout:g} is for a launch file; leave it out")
    config = for_gpu(config, gpu)
    changes = parse_changes(what_if, gpu)
    names = kernels_named(kernels, config.dtype)
    configs = [config.configure(kernel, shape) for kernel in names]
    changed = [(n, change, _changed(name, config, shape, change)) for n, name in enumerate(names) for change in changes]
    artifacts = build_with_notice([*configs, *(each for _, _, each in changed)])
    found = [predict(artifact, shape, gpu, inputs) for artifact in artifacts[: len(configs)]]
    tried = [
        Tried(n, change, _predict_changed(artifact, shape, gpu, inputs, change))
        for (n, change, _), artifact in zip(changed, artifacts[len(configs) :], strict=True)
    ]
    _tell(found, tried, json_path)
    return EXIT_OK


def _tell(found: Sequence[Prediction], tried: Sequence[Tried], json_path: str | None, last: str = "") -> None:
    """last: a line below the tables."""
    if json_path is not None:
        data = {"predictions": [_as_dict(n, each, tried) for n, each in enumerate(found)]}
        write_output(as_json(data), json_path)
    if json_path != "-":
        show(Console(), found, tried)
        if last:
            show_line(Console(), last)


@dataclass(frozen=True)
class Tried:
    """A prediction with something changed. number: of the prediction it belongs to."""

    number: int
    change: Change
    prediction: Prediction


def _predict_changed(artifact: Artifact, shape: Shape, gpu: Gpu, inputs: str, change: Change) -> Prediction:
    """A rate of nothing, or a time without end, is no number that the model could have an answer for."""
    try:
        return predict(artifact, shape, gpu, inputs, change.constants)
    except ArithmeticError as error:
        raise UsageProblem(
            f"--what-if '{change.text}': the model has no answer ({error}); use a value nearer to the constant's own"
        ) from None


def _changed(kernel: str, config: ConfigOptions, shape: Shape, change: Change) -> KernelConfig:
    return config.but(**change.options).configure(kernel, shape)


def _as_dict(number: int, prediction: Prediction, tried: Sequence[Tried]) -> dict[str, Any]:
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


def for_gpu(config: ConfigOptions, gpu: Gpu) -> ConfigOptions:
    """Sets the architecture that the GPU has."""
    if config.arch not in (None, gpu.arch):
        raise UsageProblem(f"--arch {config.arch}: {gpu.title} runs {gpu.arch}; leave --arch out")
    return config.but(arch=gpu.arch)


def show(console: Console, found: Sequence[Prediction], tried: Sequence[Tried] = ()) -> None:
    """Tables of the predictions, of where their time goes, and of what was changed."""
    first = found[0]
    what, more = _problem(first)
    console.print(
        f"Predicted, not measured: {escape(first.gpu.title)}{what}; "
        f"{first.gpu.error_in_words(first.error_percent)}{more}.",
        highlight=False,
        soft_wrap=True,
    )
    names = [readable_name(each.kernel)[:LONGEST_NAME] for each in found]
    table = make_table("", *names)
    table.add_row("predicted cycles", *(f"{each.cycles:,.0f} {each.band}" for each in found))
    table.add_row("predicted microseconds", *(f"{1e6 * each.seconds:,.2f}" for each in found))
    table.add_row("predicted clock", *(f"{each.clock.hertz / 1e9:.2f} GHz" for each in found))
    table.add_row("predicted power", *(_power(each) for each in found))
    table.add_row("predicted TFLOPS", *(f"{_tflops(each)} {each.band}" for each in found))
    console.print(table)
    console.print("\nWhere the predicted cycles go", highlight=False)
    parts = make_table("", *names)
    for number, limit in enumerate(first.limits):
        parts.add_row(limit.name, *(f"{100 * each.limits[number].share:.1f} %" for each in found))
    console.print(parts)
    for number, each in enumerate(found):
        mine = [one for one in tried if one.number == number]
        if mine:
            console.print(
                f"\nWhat if: predicted cycles of {escape(each.kernel)}, largest change first", highlight=False
            )
            console.print(_tornado(each, mine))


def make_table(*headings: str) -> Table:
    """Without lines; the first column is text, the others are figures."""
    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(escape(heading), justify="right" if number else "left", no_wrap=not number)
    return table


def _problem(prediction: Prediction) -> tuple[str, str]:
    """Of our kernels the matrices; of anyone's PTX the model knows less."""
    if prediction.label:
        m, n, k = prediction.shape
        return f", C[{m},{n}], K={k}", ""
    return "", ", and by more for what is no GEMM by tensor copies"


def _tflops(prediction: Prediction) -> str:
    return f"{prediction.tflops:,.{0 if prediction.tflops >= 10 else 3}f}"


def _power(prediction: Prediction) -> str:
    return f"{prediction.clock.watts:.0f} W{', limit' if prediction.clock.limited else ''}"


LONGEST_NAME = 40
BAR = 12
"""Columns of the longest bar."""


def _tornado(base: Prediction, tried: Sequence[Tried]) -> Table:
    """Bars to the left: faster; to the right: slower."""
    ratios = {id(each): each.prediction.cycles / base.cycles - 1 for each in tried}
    largest = max(0.001, *map(abs, ratios.values()))
    table = make_table("change", "cycles", "", "", "TFLOPS")
    for each in sorted(tried, key=lambda one: -abs(ratios[id(one)])):
        ratio = ratios[id(each)]
        length = round(BAR * abs(ratio) / largest)
        bar = ("█" * length).rjust(BAR) + "│" + " " * BAR if ratio < 0 else " " * BAR + "│" + ("█" * length).ljust(BAR)
        table.add_row(
            escape(each.change.text),
            f"{each.prediction.cycles:,.0f}",
            f"{100 * ratio:+.1f} %",
            bar,
            f"{each.prediction.tflops:,.0f}",
        )
    return table
