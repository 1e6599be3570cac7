"""Command line: run the probes, compare a GPU with the emulator, write down the answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from harness.emulator import EmulatorError
from harness.errors import CannotRun
from harness.probes import bundle, emulator, gpu, recording
from harness.probes.bundle import Answered
from harness.probes.catalogue import ALL, BLACKWELL, PROBES
from harness.probes.comparison import compare
from harness.probes.probe import Probe

SHOWN_DIFFERENCES = 5
GROUPS = {"hopper": PROBES, "blackwell": BLACKWELL, "all": ALL}


@click.command()
@click.argument("names", nargs=-1, metavar="[PROBE]...", type=click.Choice(list(ALL)))
@click.option("--device", type=click.Choice(["emulator", "gpu"]), default="emulator", show_default=True)
@click.option(
    "--group",
    type=click.Choice(list(GROUPS)),
    default="all",
    show_default=True,
    help="Those that Hopper can answer, or what only Blackwell can.",
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the answers to this file.")
@click.option("--timeout", default=gpu.TIME_LIMIT, show_default=True, help="Seconds a case may take on a GPU.")
@click.option("--bundle", "folder", type=click.Path(path_type=Path), help="Only write the probes to this folder.")
@click.option(
    "--results",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read what bare.py of a bundle wrote, instead of running anything.",
)
def main(
    names: tuple[str, ...],
    device: str,
    group: str,
    path: Path | None,
    timeout: float,
    folder: Path | None,
    results: Path | None,
) -> None:
    """Run the probes (all, or the named ones). On a GPU each that it can be asked is compared with the emulator.

    On a machine that has a GPU but not this package: write a bundle here, run `python bare.py . OUT` in it there, and
    read OUT here with --results.
    """
    probes = [ALL[name] for name in names or GROUPS[group]]
    if folder is not None:
        bundle.write(folder, probes)
        click.echo(f"{len(probes)} probes in {folder}; run: python bare.py . OUT")
        return
    try:
        clean = record(probes, device, path, timeout, results)
    except (gpu.GpuError, CannotRun) as error:
        raise click.ClickException(str(error)) from None
    if not clean:
        raise SystemExit(1)


def record(
    probes: Iterable[Probe],
    device: str,
    path: Path | None,
    timeout: float = gpu.TIME_LIMIT,
    results: Path | None = None,
) -> bool:
    """Run the probes or read their results, say how they compare, and write them to ``path``; whether all is well.

    Raises harness.probes.gpu.GpuError if there is no GPU, CannotRun if there are no results.
    """
    machine, ask = _machine(device, timeout, results)
    real = machine["gpu"] != "emulator"
    if real:
        click.echo(f"{machine['gpu']}, driver {machine['driver']}, {machine['date']}")
        probes = list(_for_machine(probes, machine))
    else:
        probes = [probe for probe in probes if probe.modelled]
    entries, differing, failed = {}, 0, 0
    for probe in probes:
        start = time.perf_counter()
        try:
            answered = ask(probe)
        except (gpu.GpuError, EmulatorError, CannotRun) as error:
            failed += 1
            entries[probe.name] = recording.failure(probe, str(error))
            click.echo(f"{probe.name:34} failed: {error}")
        else:
            seconds = time.perf_counter() - start
            entries[probe.name] = recording.entry(probe, answered.outputs, seconds, answered.failed)
            lines = compare(probe, answered.outputs) if real else []
            differing += bool(lines) and probe.exact
            failed += bool(answered.failed)
            click.echo(f"{probe.name:34} {seconds:6.2f} s  {_verdict(probe, lines) if real else ''}")
            for line in lines[:SHOWN_DIFFERENCES]:
                click.echo(f"    {line}")
            for case, said in answered.failed.items():
                click.echo(f"    {case}: failed: {said}")
        if path is not None:
            recording.write(path, machine, entries)
    click.echo(f"{len(entries)} probes, {failed} failed, {differing} differ from the emulator")
    return not failed and not differing


def _for_machine(probes: Iterable[Probe], machine: dict[str, Any]) -> Iterable[Probe]:
    """The probes that this GPU can be asked, as they are for it."""
    target = gpu.TARGETS[machine["compute_capability"]]
    asked = list(probes)
    for probe in asked:
        if target in probe.targets:
            yield probe.on(target)
    others = [probe for probe in asked if target not in probe.targets]
    if others:
        needed = ", ".join(dict.fromkeys(probe.target for probe in others))
        click.echo(f"{len(others)} probes are skipped: they ask what {target} has not, but {needed} has")


def _verdict(probe: Probe, lines: list[str]) -> str:
    if not probe.modelled:
        return "recorded; the emulator has no answer"
    return f"{'differs from' if lines else 'as'} the emulator{'' if probe.exact else ' (approximate)'}"


def _machine(device: str, timeout: float, results: Path | None) -> tuple[dict[str, Any], Callable[[Probe], Answered]]:
    """What answers, and how it is asked."""
    if results is not None:
        try:
            machine = json.loads((results / "machine.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CannotRun(f"{results} holds no results of bare.py: {error}") from None
        return machine, lambda probe: bundle.read(results / f"{probe.name}.npz", probe)
    if device == "gpu":
        return dict(gpu.describe()), lambda probe: gpu.run_in_child(probe, timeout)
    return {"gpu": "emulator"}, lambda probe: Answered(emulator.run(probe), {})


if __name__ == "__main__":
    main()
