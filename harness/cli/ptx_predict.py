"""``harness ptx predict``: what the timing model says of anyone's PTX."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from harness.cli.options import FiniteRange, NamedPath, check_output, json_option, write_output
from harness.cli.predict import make_table
from harness.emulator.names import readable_name
from harness.errors import EXIT_OK, EXIT_WRONG_RESULT
from harness.launch.launch_file import read_launch_file
from harness.launch.options import EmulationOptions
from harness.timing.constants import find_gpu, gpu_names
from harness.timing.predict import Prediction, predict_launches


@click.command("predict")
@click.argument("file", metavar="LAUNCH.toml", type=NamedPath(path_type=Path))
@click.option("--gpu", "gpu_name", required=True, metavar="NAME", help=f"One of {', '.join(gpu_names())}.")
@click.option("--timeout", type=FiniteRange(0, min_open=True), help="Seconds a launch may take.  [default: no limit]")
@json_option
def predict_command(file: Path, gpu_name: str, timeout: float | None, json_path: str | None) -> int:
    """Predict the cycles of what LAUNCH.toml launches. The results are checked, too.

    Nothing is measured: a model runs the PTX on emulated multiprocessors with a clock.
    """
    check_output(json_path, "--json")
    outcome, found = predict_launches(
        read_launch_file(file), find_gpu(gpu_name), EmulationOptions(strict=False, timeout=timeout)
    )
    if json_path is not None:
        data = {"predictions": [each.as_dict() for each in found]}
        write_output(json.dumps(data, indent=2, allow_nan=False) + "\n", json_path)
    if json_path != "-":
        _show(Console(), found, outcome.passed)
    return EXIT_OK if outcome.passed else EXIT_WRONG_RESULT


def _show(console: Console, found: list[Prediction], passed: bool) -> None:
    if not found:
        console.print("nothing is launched", highlight=False)
        return
    first = found[0].as_dict()
    console.print(
        f"Predicted, not measured: {escape(found[0].gpu.title)}; the cycles may be wrong by "
        f"{first['error_percent']:.0f} %, and by more for what is no GEMM by tensor copies.",
        highlight=False,
        soft_wrap=True,
    )
    table = make_table("", *(readable_name(each.kernel)[:40] for each in found))
    rows = [each.as_dict() for each in found]
    table.add_row("predicted cycles", *(f"{row['cycles']:,} ±{row['error_percent']:.0f} %" for row in rows))
    table.add_row("predicted microseconds", *(f"{1e6 * row['seconds']:.2f}" for row in rows))
    table.add_row("predicted TFLOPS of the tensor cores", *(f"{row['tflops']:,}" for row in rows))
    for number, limit in enumerate(found[0].limits):
        table.add_row(limit.name, *(f"{100 * each.limits[number].share:.1f} %" for each in found))
    console.print(table)
    console.print(f"the results are {'as expected' if passed else 'WRONG'}", highlight=False)
