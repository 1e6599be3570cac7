"""Options that several commands share, and how their text is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from harness.catalog import ARCHITECTURES, CLC_DEPTHS, EPILOGUE_WIDTHS, RASTER_GROUPS, SCHEDULERS
from harness.config import parse_cluster, parse_mma_shape
from harness.device import CHOICES
from harness.dtypes import ELEMENT_TYPES
from harness.emulate import Accumulation, Schedule
from harness.emulator.rules import WARNINGS
from harness.inputs import KINDS
from harness.presets import PRESETS
from harness.problem import parse_shape

DEFAULT_SHAPE = "1024"
LARGEST_SEED = 2**32 - 1
THE_KERNELS = "[default: the kernel's]"

Command = TypeVar("Command", bound=Callable[..., Any])


class Parsed(click.ParamType):
    """An option whose text is read by one of the harness's own functions."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        return self.parse(value) if isinstance(value, str) else value


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """One decorator for several options, shown in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


shape_option = click.option(
    "--shape",
    type=Parsed("M,N,K", parse_shape),
    default=DEFAULT_SHAPE,
    show_default=True,
    help="M,N,K or one number for all three.",
)


def check_output(path: str | None, option: str) -> None:
    """Refuses a file that cannot be written; to be asked before the work is done."""
    if path in (None, "-"):
        return
    if not path or Path(path).is_dir() or not Path(path).parent.is_dir():
        raise click.UsageError(
            f"{option} {path!r} is not a file in an existing folder; name one, or use - for the screen"
        )


# Their values go to `harness.presets.configure` by these names; None is not asked for.
config_options = together(
    click.option("--preset", metavar="NAME", help=f"One of {', '.join(PRESETS)}; other options override what it sets."),
    click.option("--arch", type=click.Choice(["auto", *ARCHITECTURES]), default="auto", show_default=True),
    click.option("--dtype", type=click.Choice(list(ELEMENT_TYPES)), help="Of A, B and C.  [default: bf16]"),
    click.option(
        "--cta-group",
        type=int,
        metavar="1|2",
        help="CTAs that work on one MMA: 1, or 2 (a pair).  [default: the architecture's]",
    ),
    click.option(
        "--mma-shape",
        type=Parsed("MxN", parse_mma_shape),
        help="Tile of one MMA, of both CTAs together in a pair.  [default: the largest]",
    ),
    click.option("--stages", type=int, help=f"Depth of the shared-memory ring.  {THE_KERNELS}"),
    click.option(
        "--cluster",
        type=Parsed("CMxCN", parse_cluster),
        help="CTAs along M x CTAs along N.  [default: the architecture's]",
    ),
    click.option(
        "--epilogue-width",
        type=int,
        metavar="|".join(map(str, sorted(EPILOGUE_WIDTHS))),
        help=f"Columns of C in one TMA store.  {THE_KERNELS}",
    ),
    click.option(
        "--multicast/--no-multicast",
        default=None,
        help="CTAs of a cluster send slices to each other, or each loads its own.  [default: multicast]",
    ),
    click.option(
        "--scheduler",
        type=click.Choice(SCHEDULERS),
        help="Where the next tile comes from: cluster launch control, a fixed list, a counter, or there is none.  "
        f"{THE_KERNELS}",
    ),
    click.option(
        "--raster-group",
        type=int,
        metavar="|".join(map(str, RASTER_GROUPS)),
        help=f"Columns of cluster tiles that are walked along M together.  {THE_KERNELS}",
    ),
    click.option(
        "--accumulators",
        type=int,
        metavar="1|2",
        help=f"Accumulators in tensor memory, filled in turn.  {THE_KERNELS}",
    ),
    click.option(
        "--clc-depth",
        type=int,
        metavar="|".join(map(str, CLC_DEPTHS)),
        help=f"Answers of cluster launch control that are kept.  {THE_KERNELS}",
    ),
    click.option(
        "--sms",
        type=click.IntRange(1),
        help="Multiprocessors that clusters which stay fill.  [default: a B200's or H200's]",
    ),
    click.option(
        "--ping-pong/--cooperative",
        default=None,
        help=f"On sm_90a: warpgroups take tiles in turn, or halves of each.  {THE_KERNELS}",
    ),
)

GPU_SILENCE = 60.0

# Their values make a `harness.runner.Request`, together with a configuration and a shape.
run_options = together(
    click.option("--device", type=click.Choice(CHOICES), default="auto", show_default=True),
    click.option(
        "--inputs",
        type=click.Choice(KINDS),
        help="Values of A and B; integer and index must match exactly.  "
        "[default: normal on a GPU, where values change the speed, else integer]",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, LARGEST_SEED),
        default=0,
        show_default=True,
        help="For the inputs and the random schedule.",
    ),
    click.option(
        "--schedule",
        type=click.Choice(get_args(Schedule)),
        default="fifo",
        show_default=True,
        help="Order in which the emulator completes things.",
    ),
    click.option(
        "--accumulation",
        type=click.Choice(get_args(Accumulation)),
        default="f32",
        show_default=True,
        help="Arithmetic of the emulated tensor core.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Processes that share the clusters of an emulated grid, if these are independent.",
    ),
    click.option(
        "--resident-clusters",
        type=click.IntRange(1),
        help="Clusters the emulated GPU holds at once.  [default: as many as there is room for]",
    ),
    click.option("--max-steps", type=click.IntRange(1), help="Warp instructions after which an emulated run is ended."),
    click.option(
        "--timeout",
        type=click.FloatRange(1),
        help="Seconds a GPU may be silent before its process is ended, or an emulated run may take.  "
        f"[default: {GPU_SILENCE:g} on a GPU, else no limit]",
    ),
    click.option(
        "--strict/--no-strict",
        default=True,
        show_default=True,
        help="Whether breaches of rules that hardware is known to tolerate are errors.",
    ),
    click.option(
        "--allow",
        multiple=True,
        type=click.Choice(WARNINGS),
        help="Such a rule that may be broken; may be repeated.",
    ),
    click.option("--json", "json_path", metavar="PATH|-", help="Write JSON there; - prints it instead of the report."),
    click.option("--no-save", is_flag=True, help="Do not add records to results/."),
)
