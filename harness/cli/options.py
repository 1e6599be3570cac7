"""Options that several commands share, and how their text is read.

Options come in groups. A command decorated with a group takes one argument, a dataclass with what they were set to:

    @click.command()
    @shape_option
    @config_options
    @run_options
    def check(shape: Shape, config: ConfigOptions, run: RunOptions) -> int: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from emugpu.cli.options import (
    Command,
    FiniteRange,
    NamedPath,
    Parsed,
    allow_option,
    emulator_options,
    group,
    json_option,
    offering,
    ptxas_option,
    schedule_option,
    schedule_seed_option,
    schedules_option,
    strict_option,
)
from emugpu.errors import UsageProblem
from emugpu.launch.launching import LARGEST_SEED, EmulationOptions
from harness.compile.catalog import KERNELS
from harness.compile.config import OPTIONS, PRESETS, KernelConfig, Option, chosen_options, configure
from harness.problem import KINDS, Shape, parse_groups, parse_shape
from harness.run.runner import CHOICES

DEFAULT_SHAPE = "1024"


def own_or_named(word: str) -> str:
    """The name of the kernel in a Mojo file, which is known from now on; any other word as it is."""
    if not word.endswith(".mojo"):
        return word
    from harness.compile.own_kernel import take_in

    return take_in(word)


KERNEL_WORD = Parsed("kernel", own_or_named)
"""A kernel's name, or a Mojo file with a kernel of one's own, which becomes its name."""
kernel_argument = click.argument("kernel", type=KERNEL_WORD, shell_complete=offering(lambda: KERNELS))
kernels_argument = click.argument(
    "kernels",
    nargs=-1,
    required=True,
    type=KERNEL_WORD,
    metavar="KERNEL...|all",
    shell_complete=offering(lambda: [*KERNELS, "all"]),
)
what_argument = click.argument(
    "kernels",
    nargs=-1,
    required=True,
    type=KERNEL_WORD,
    metavar="KERNEL...|all|LAUNCH.toml",
    shell_complete=offering(lambda: [*KERNELS, "all"]),
)
"""Of commands that take launch files, too (`harness.cli.running`)."""


plain_shape_option = click.option(
    "--shape",
    type=Parsed("M,N,K", parse_shape),
    default=DEFAULT_SHAPE,
    show_default=True,
    help="M,N,K or one number for all three; M,N,K@LDA,LDB,LDC with leading dimensions, 0: none.",
)


def _one_product(shape: Shape, groups: tuple[int, ...] | None) -> Shape:
    if groups:
        raise UsageProblem(
            f"--groups {','.join(map(str, groups))}: this command takes one A and one B; leave it out, or give the "
            f"largest group alone, --shape {max(groups)},{shape.n},{shape.k}"
        )
    return shape


groups_option = partial(
    click.option,
    "--groups",
    type=Parsed("M0,M1,...", parse_groups),
    help="Rows of A that each group has, M in all, for a B of its own: docs/grouped.md.",
)
product_option = group("shape", _one_product, plain_shape_option, groups_option(hidden=True))
"""Of commands that cannot take groups, and say so."""

shape_option = group(
    "shape",
    lambda shape, groups, masked: replace(shape, groups=groups or (), masked=masked or 0),
    plain_shape_option,
    groups_option(),
    click.option(
        "--masked",
        type=click.IntRange(min=1),
        metavar="ROWS",
        help="Each group has so many rows in memory, of which --groups says how many count: the first.",
    ),
)


@dataclass(frozen=True)
class ConfigOptions:
    """Holds the options of a kernel's configuration: a preset, and values by the names of `OPTIONS`."""

    preset: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arch(self) -> str | None:
        """Returns the architecture of these options; a preset may have one, too."""
        return self.asked.get("arch")

    @property
    def dtype(self) -> str | None:
        """Returns the type of A and B that is asked for."""
        return self.asked.get("dtype")

    def wanted_arch(self, kernel: str) -> str:
        """Returns the architecture of these options or of the preset, else ``auto``."""
        return chosen_options(kernel, self.preset, {"arch": self.arch}).get("arch", "auto")

    @property
    def asks_nothing(self) -> bool:
        """Returns whether the configuration is left to the kernel, but for architecture and type."""
        return self.preset is None and not self.asked.keys() - {"arch", "dtype"}

    def but(self, **asked: Any) -> ConfigOptions:
        """Returns the same configuration, but for these options."""
        return ConfigOptions(self.preset, {**self.asked, **asked})

    def configure(self, kernel: str, shape: Shape) -> KernelConfig:
        """Returns the configuration of a kernel that these options ask for."""
        return configure(kernel, self.preset, shape=shape, **self.asked)


def _gathered(preset: str | None, **values: Any) -> ConfigOptions:
    return ConfigOptions(preset, {name: value for name, value in values.items() if value not in (None, "auto")})


def config_option(option: Option) -> Callable[[Command], Command]:
    """Returns the option of a command for one option of the configuration."""
    if option.kind == "switch":
        return click.option(f"{option.flag}/{option.off}", default=None, help=option.help)
    if option.takes_file or (option.takes_auto and option.kind == "number"):
        kind = Parsed(option.written, option.parse)
        return click.option(option.flag, type=kind, metavar=option.written, help=option.help)
    kinds: dict[str, Any] = {
        "number": click.IntRange(option.least) if option.least else click.INT,
        "pair": Parsed(option.written, option.parse),
        "word": click.Choice(["auto", *option.choices] if option.takes_auto else option.choices),
    }
    return click.option(option.flag, type=kinds[option.kind], metavar=option.written or None, help=option.help)


preset_option = click.option(
    "--preset",
    metavar="NAME",
    shell_complete=offering(lambda: PRESETS),
    help=f"One of {', '.join(PRESETS)}; other options override what it sets.",
)

config_options = group("config", _gathered, preset_option, *map(config_option, OPTIONS.values()))

GPU_SILENCE = 60.0


@dataclass(frozen=True)
class RunOptions:
    """What to run a kernel on, with which inputs, and how to emulate it."""

    device: str
    inputs: str | None
    seed: int
    schedules: int
    emulation: EmulationOptions
    tuned: bool = True
    ptxas: bool = True


def _run_options(
    device: str,
    inputs: str | None,
    seed: int,
    schedules: int,
    schedule_seed: int,
    tuned: bool,
    ptxas: bool,
    **emulation: Any,
) -> RunOptions:
    return RunOptions(device, inputs, seed, schedules, EmulationOptions(seed=schedule_seed, **emulation), tuned, ptxas)


seed_option = click.option(
    "--seed", type=click.IntRange(0, LARGEST_SEED), default=0, show_default=True, help="Seed of the inputs."
)
run_options = group(
    "run",
    _run_options,
    click.option("--device", type=click.Choice(CHOICES), default="auto", show_default=True),
    click.option(
        "--inputs",
        type=click.Choice(KINDS),
        help="Values of A and B; integer and index must match exactly.  "
        "[default: normal on a GPU, where values change the speed, else integer]",
    ),
    seed_option,
    schedules_option(1, "1"),
    schedule_option,
    schedule_seed_option,
    emulator_options,
    click.option(
        "--timeout",
        type=FiniteRange(1),
        help="Seconds a GPU may be silent before its process is ended, or an emulated run may take.  "
        f"[default: {GPU_SILENCE:g} on a GPU, else no limit]",
    ),
    strict_option(True, "strict, of a launch file no-strict"),
    allow_option,
    ptxas_option,
    click.option(
        "--tuned/--no-tuned",
        default=True,
        help="On a GPU, where no option of the configuration is given: what harness tune has found, or the default.  "
        "[default: tuned]",
    ),
)


ptx_option = click.option(
    "--ptx",
    "ptx_file",
    metavar="FILE",
    type=NamedPath(path_type=Path),
    help="Run this PTX instead of the compiled kernel, with the same launch plan; on the emulator.",
)


@dataclass(frozen=True)
class OutputOptions:
    """Says where the outcome goes, besides the screen."""

    json_path: str | None
    no_save: bool


output_options = group(
    "output",
    OutputOptions,
    json_option,
    click.option("--no-save", is_flag=True, help="Do not add records to results/."),
)
