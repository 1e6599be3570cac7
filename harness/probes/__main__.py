"""Command line: run the probes, compare a GPU with the emulator, write down the answers."""

from __future__ import annotations

from pathlib import Path

import click

from harness.errors import CannotRun
from harness.probes import bundle, gpu
from harness.probes.catalogue import ALL
from harness.probes.record import GROUPS, record


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


if __name__ == "__main__":
    main()
