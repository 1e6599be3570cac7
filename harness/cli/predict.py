"""``harness predict``: what the timing model says of kernels on a GPU, whether or not there is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.build.artifacts import Artifact, build_with_notice
from harness.build.config import KernelConfig
from harness.cli.options import ConfigOptions, check_output, config_options, json_option, shape_option, write_output
from harness.cli.running import kernels_named
from harness.errors import UsageProblem
from harness.problem.shape import Shape
from harness.timing.constants import Gpu, find_gpu, gpu_names
from harness.timing.power import INPUTS
from harness.timing.predict import Prediction, predict
from harness.timing.what_if import Change, parse_changes


@click.command("predict")
@click.argument("kernels", nargs=-1, required=True, metavar="KERNEL...|all")
@shape_option
@config_options
@click.option("--gpu", "gpu_name", required=True, metavar="NAME", help=f"One of {', '.join(gpu_names())}.")
@click.option(
    "--inputs", type=click.Choice(list(INPUTS)), default="normal", show_default=True, help="Which decide the power."
)
@click.option(
    "--what-if",
    "what_if",
    multiple=True,
    metavar="NAME=VALUE|all",
    help="The same with a constant (l2.bandwidth=0.5x) or an option (stages=3) changed; may be repeated.",
)
@json_option
def predict_command(
    kernels: tuple[str, ...],
    shape: Shape,
    config: ConfigOptions,
    gpu_name: str,
    inputs: str,
    what_if: tuple[str, ...],
    json_path: str | None,
) -> None:
    """Predict cycles and TFLOPS of KERNELs, and where time goes.

    Nothing is measured: a model runs the compiled kernel on emulated multiprocessors with a clock. With --what-if it
    says what would change most.
    """
    check_output(json_path, "--json")
    gpu = find_gpu(gpu_name)
    config = for_gpu(config, gpu)
    changes = parse_changes(what_if, gpu)
    names = kernels_named(kernels)
    configs = [config.configure(kernel, shape) for kernel in names]
    changed = [(n, change, _changed(name, config, shape, change)) for n, name in enumerate(names) for change in changes]
    artifacts = build_with_notice([*configs, *(each for _, _, each in changed)])
    found = [predict(artifact, shape, gpu, inputs) for artifact in artifacts[: len(configs)]]
    tried = [
        Tried(n, change, _predict_changed(artifact, shape, gpu, inputs, change))
        for (n, change, _), artifact in zip(changed, artifacts[len(configs) :], strict=True)
    ]
    if json_path is not None:
        data = {"predictions": [_as_dict(n, each, tried) for n, each in enumerate(found)]}
        write_output(json.dumps(data, indent=2, allow_nan=False) + "\n", json_path)
    if json_path != "-":
        show(Console(), found, tried)


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
    return replace(config, **change.options).configure(kernel, shape)


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
    """The GPU decides the architecture."""
    if config.arch not in ("auto", gpu.arch):
        raise UsageProblem(f"--arch {config.arch}: {gpu.title} runs {gpu.arch}; leave --arch out")
    return replace(config, arch=gpu.arch)


def show(console: Console, found: Sequence[Prediction], tried: Sequence[Tried] = ()) -> None:
    """Tables of the predictions, of where their time goes, and of what was changed."""
    first = found[0]
    m, n, k = first.shape
    console.print(
        f"Predicted, not measured: {escape(first.gpu.title)}, C[{m},{n}], K={k}; "
        f"the cycles may be wrong by {first.error_percent:.0f} %.",
        highlight=False,
        soft_wrap=True,
    )
    table = make_table("", *(each.kernel for each in found))
    table.add_row("predicted cycles", *(f"{each.cycles:,.0f} ±{each.error_percent:.0f}%" for each in found))
    table.add_row("predicted clock", *(f"{each.clock.hertz / 1e9:.2f} GHz" for each in found))
    table.add_row("predicted power", *(_power(each) for each in found))
    table.add_row("predicted TFLOPS", *(f"{each.tflops:,.0f} ±{each.error_percent:.0f}%" for each in found))
    console.print(table)
    console.print("\nWhere the predicted cycles go", highlight=False)
    parts = make_table("", *(each.kernel for each in found))
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


def _power(prediction: Prediction) -> str:
    return f"{prediction.clock.watts:.0f} W{', limit' if prediction.clock.limited else ''}"


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
