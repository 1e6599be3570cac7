"""Command line: run the probes, compare a GPU with the emulator, write down the answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from harness.emulator import EmulatorError
from harness.probes import emulator, gpu, recording
from harness.probes.catalogue import PROBES
from harness.probes.probe import Outputs, Probe, differences

SHOWN_DIFFERENCES = 5


@click.command()
@click.argument("names", nargs=-1, metavar="[PROBE]...", type=click.Choice(list(PROBES)))
@click.option("--device", type=click.Choice(["emulator", "gpu"]), default="emulator", show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the answers to this file.")
@click.option("--timeout", default=gpu.TIME_LIMIT, show_default=True, help="Seconds a probe may take on a GPU.")
def main(names: tuple[str, ...], device: str, path: Path | None, timeout: float) -> None:
    """Run the probes (all, or the named ones). On a GPU each is compared with the emulator."""
    machine: dict[str, Any] = {"gpu": "emulator"}
    if device == "gpu":
        try:
            machine = gpu.describe()
        except gpu.GpuError as error:
            raise click.ClickException(str(error)) from None
        click.echo(f"{machine['gpu']}, driver {machine['driver']}, {machine['date']}")
    entries, differing, failed = {}, 0, 0
    for name in names or PROBES:
        probe = PROBES[name]
        start = time.perf_counter()
        try:
            outputs = gpu.run_in_child(probe, timeout) if device == "gpu" else emulator.run(probe)
        except (gpu.GpuError, EmulatorError) as error:
            failed += 1
            entries[name] = recording.failure(probe, str(error))
            click.echo(f"{name:34} failed: {error}")
        else:
            seconds = time.perf_counter() - start
            entries[name] = recording.entry(probe, outputs, seconds)
            lines = _compare(probe, outputs) if device == "gpu" else []
            differing += bool(lines)
            verdict = "" if device == "emulator" else "differs from the emulator" if lines else "as the emulator"
            click.echo(f"{name:34} {seconds:6.2f} s  {verdict}")
            for line in lines[:SHOWN_DIFFERENCES]:
                click.echo(f"    {line}")
        if path is not None:
            recording.write(path, machine, entries)
    click.echo(f"{len(entries)} probes, {failed} failed, {differing} differ from the emulator")
    if failed or differing:
        raise SystemExit(1)


def _compare(probe: Probe, found: Outputs) -> list[str]:
    try:
        return differences(emulator.run(probe), found)
    except EmulatorError as error:
        return [f"the emulator stops: {error}"]


if __name__ == "__main__":
    main()
