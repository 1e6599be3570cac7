"""``harness predict``: what the timing model says of kernels on a GPU, whether or not there is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli.options import ConfigOptions, check_output, config_options, json_option, shape_option, write_output
from harness.cli.running import kernels_named
from harness.compiler.build import build_with_notice
from harness.errors import UsageProblem
from harness.problem.shape import Shape
from harness.timing.constants import Gpu, find_gpu, gpu_names
from harness.timing.power import INPUTS
from harness.timing.predict import Prediction, predict


@click.command("predict")
@click.argument("kernels", nargs=-1, required=True, metavar="KERNEL...|all")
@shape_option
@config_options
@click.option("--gpu", "gpu_name", required=True, metavar="NAME", help=f"One of {', '.join(gpu_names())}.")
@click.option(
    "--inputs", type=click.Choice(list(INPUTS)), default="normal", show_default=True, help="Which decide the power."
)
@json_option
def predict_command(
    kernels: tuple[str, ...], shape: Shape, config: ConfigOptions, gpu_name: str, inputs: str, json_path: str | None
) -> None:
    """Predict cycles and TFLOPS of each KERNEL on a GPU, and where the time goes.

    Nothing is measured: a model runs the compiled kernel on emulated multiprocessors with a clock.
    """
    check_output(json_path, "--json")
    gpu = find_gpu(gpu_name)
    config = _for_gpu(config, gpu)
    configs = [config.configure(kernel, shape) for kernel in kernels_named(kernels)]
    found = [predict(artifact, shape, gpu, inputs) for artifact in build_with_notice(configs)]
    if json_path is not None:
        data = {"predictions": [each.as_dict() for each in found]}
        write_output(json.dumps(data, indent=2, allow_nan=False) + "\n", json_path)
    if json_path != "-":
        show(Console(), found)


def _for_gpu(config: ConfigOptions, gpu: Gpu) -> ConfigOptions:
    """The GPU decides the architecture."""
    if config.arch not in ("auto", gpu.arch):
        raise UsageProblem(f"--arch {config.arch}: {gpu.title} runs {gpu.arch}; leave --arch out")
    return replace(config, arch=gpu.arch)


def show(console: Console, found: Sequence[Prediction]) -> None:
    """Tables of the predictions and of where their time goes."""
    first = found[0]
    error = f"{first.error_percent:.0f} %"
    shape = first.shape
    console.print(
        f"Predicted, not measured: {escape(first.gpu.title)}, C[{shape.m},{shape.n}], K={shape.k}; "
        f"error of the cycles up to {error}",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    for name, justify in (("kernel", "left"), ("predicted cycles", "right"), ("error", "right"), ("clock", "right"),
                          ("power", "right"), ("predicted TFLOPS", "right"), ("tensor core", "right")):  # fmt: skip
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for each in found:
        table.add_row(
            each.kernel,
            f"{each.cycles:,.0f}",
            f"±{error}",
            f"{each.clock.hertz / 1e9:.2f} GHz",
            f"{each.clock.watts:.0f} W{' (limit)' if each.clock.limited else ''}",
            f"{each.tflops:.0f}",
            f"{100 * each.tensor_busy:.1f} %",
        )
    console.print(table)
    console.print("\nWhere the predicted cycles go:", highlight=False)
    parts = Table(box=None, pad_edge=False)
    parts.add_column("")
    for each in found:
        parts.add_column(each.kernel, justify="right")
    for number, limit in enumerate(first.limits):
        parts.add_row(limit.name, *(f"{100 * each.limits[number].share:.1f} %" for each in found))
    console.print(parts)
