"""Options that several commands share: the kernel, its configuration, the problem, and the device.

Options come in groups (`emugpu.cli.options`). A command decorated with a group gets one argument, a dataclass with
the values of the options:

    @click.command()
    @kernels_argument
    @problem_options("inputs", "seed")
    @config_options
    def check(kernels: tuple[str, ...], problem: Problem, config: ConfigOptions) -> int: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click

from emugpu.cli.emulation import SETTINGS as EMULATED
from emugpu.cli.emulation import emulation_options
from emugpu.cli.options import Command, NamedPath, Parsed, group, offering, together
from emugpu.errors import UsageProblem
from emugpu.launch.launching import LARGEST_SEED
from harness.compile.catalog import KERNELS, USUAL_SHAPE
from harness.compile.config import KernelConfig
from harness.compile.options import OPTIONS, split_settings
from harness.compile.presets import PRESETS, chosen_options, configure, find_preset
from harness.experiments.ranges import several
from harness.problem import DTYPES, KINDS, Shape, parse_groups, parse_shape
from harness.run.runner import CHOICES
from harness.toml_files import as_words, read_toml

kernel_argument = click.argument("kernel", shell_complete=offering(lambda: KERNELS))
_kernels = partial(
    click.argument,
    "kernels",
    nargs=-1,
    required=True,
    shell_complete=offering(lambda: [*KERNELS, "all"]),
)
kernels_argument = _kernels(metavar="KERNEL...|all")
kernels_or_launch_argument = _kernels(metavar="KERNEL...|all|LAUNCH.toml")
"""The argument of the commands of the timing model."""


# ---- the problem ----


@dataclass(frozen=True)
class Problem:
    """The matrices to multiply. ``inputs`` is the kind of values in A and B, or None for the command's default;
    ``seed`` is theirs.
    """

    shape: Shape
    inputs: str | None = None
    seed: int = 0


def _kind(text: str) -> str:
    if text not in KINDS:
        raise UsageProblem(f"inputs {text!r} is not one of {', '.join(KINDS)}")
    return text


def _number(name: str, least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 12 and least <= int(text) <= most):
            raise UsageProblem(f"{name} {text!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


@dataclass(frozen=True)
class _Setting:
    written: str
    read: Callable[[str], Any]


_PROBLEM = {
    "groups": _Setting("groups=M0,M1,...", parse_groups),
    "masked": _Setting("masked=ROWS", _number("masked", 1, 2**31)),
    "inputs": _Setting(f"inputs={'|'.join(KINDS)}", _kind),
    "seed": _Setting("seed=N (of the inputs)", _number("seed", 0, LARGEST_SEED)),
}
"""The settings of ``--problem``. ``groups``: rows of A of each group, M in all. ``masked``: rows that each group has in
memory.
"""


def _usual_shape(context: click.Context, parameter: click.Parameter, shape: Shape | None) -> Shape:
    """Returns the given shape, or the usual one of the command's kernels: they share it, so one that has its own
    decides.
    """
    if shape is not None:
        return shape
    words = context.params.get("kernels") or [context.params.get("kernel")]
    usual = [KERNELS[word].usual_shape for word in words if word in KERNELS]
    return parse_shape(next((one for one in usual if one != USUAL_SHAPE), USUAL_SHAPE))


_OWN_SHAPES = [f"{one.usual_shape} for {name}" for name, one in KERNELS.items() if one.usual_shape != USUAL_SHAPE]
shape_option = click.option(
    "--shape",
    type=Parsed("M,N,K", parse_shape),
    callback=_usual_shape,
    help="M,N,K, or one number for all; @LDA,LDB,LDC behind it sets leading dimensions.  "
    f"[default: {'; '.join([USUAL_SHAPE, *_OWN_SHAPES])}]",
)


def problem_option(names: Sequence[str], note: str = "") -> Callable[[Command], Command]:
    """Returns the option for rare properties of a problem, as pairs of a name and a text."""

    def pair(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if name not in names or not equals:
            raise UsageProblem(f"--problem {text}: this command takes NAME=VALUE, of: {', '.join(names)}")
        return name, value

    return click.option(
        "--problem",
        "settings",
        type=Parsed("NAME=VALUE", pair),
        multiple=True,
        metavar="NAME=VALUE",
        help=f"Set {'; '.join(_PROBLEM[name].written for name in names)}.{note}",
    )


def _problem(shape: Shape, settings: Sequence[tuple[str, str]]) -> Problem:
    values = {}
    for name, text in settings:
        try:
            values[name] = _PROBLEM[name].read(text)
        except UsageProblem as error:
            raise UsageProblem(f"--problem {name}={text}: {error}") from None
    grouped = replace(shape, groups=values.pop("groups", ()), masked=values.pop("masked", 0))
    return Problem(grouped, **values)


def problem_options(*names: str, note: str = "") -> Callable[[Command], Command]:
    """Gives a command a `Problem`. ``names`` are the settings that its ``--problem`` accepts."""
    return group("problem", _problem, shape_option, problem_option(names, note))


# ---- the configuration ----


@dataclass(frozen=True)
class ConfigOptions:
    """The configuration that the user asks for: a preset, and values by the names of `OPTIONS`.

    ``setting`` is the part that differs from other configurations of the same command, for tables.
    """

    preset: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    setting: str = ""

    @property
    def arch(self) -> str | None:
        """Returns the architecture of these options, which a preset may set, too."""
        return self.asked.get("arch")

    @property
    def dtype(self) -> str | None:
        """Returns the requested type of A and B."""
        return self.asked.get("dtype")

    def wanted_arch(self, kernel: str) -> str:
        """Returns the architecture of these options or of the preset, or ``auto``."""
        return chosen_options(kernel, self.preset, {"arch": self.arch}).get("arch", "auto")

    @property
    def asks_nothing(self) -> bool:
        """Returns whether the options set nothing but architecture and type."""
        return self.preset is None and not self.asked.keys() - {"arch", "dtype"}

    def but(self, **asked: Any) -> ConfigOptions:
        """Returns the same configuration with these options replaced."""
        return replace(self, asked={**self.asked, **asked})

    def configure(self, kernel: str, shape: Shape) -> KernelConfig:
        """Returns the configuration of a kernel according to these options."""
        return configure(kernel, self.preset, shape=shape, **self.asked)


def _config(words: Sequence[str], dtype: str | None) -> ConfigOptions:
    texts = read_settings(words, dtype)
    preset = texts.pop("preset", None)
    if preset is not None:
        find_preset(preset)
    values = {name: OPTIONS[name].parse(text) for name, text in texts.items() if text != "auto"}
    return ConfigOptions(preset, {name: value for name, value in values.items() if value is not None})


def several_configs(words: Sequence[str], dtype: str | None) -> list[ConfigOptions]:
    """Returns one configuration for each combination of values."""
    texts = read_settings(words, dtype)
    preset = texts.pop("preset", None)
    values = {name: several(OPTIONS[name], text) for name, text in texts.items() if text != "auto"}
    presets = preset.split(",") if preset is not None else [None]
    for one in filter(None, presets):
        find_preset(one)
    found = []
    for chosen, *settings in product(presets, *values.values()):
        asked = dict(zip(values, settings, strict=True))
        differs = [OPTIONS[name].setting(value) for name, value in asked.items() if len(values[name]) > 1]
        differs += [f"preset={chosen}"] if len(presets) > 1 else []
        asked = {name: value for name, value in asked.items() if value is not None}
        found.append(ConfigOptions(chosen, asked, " ".join(differs)))
    return found


def read_settings(words: Sequence[str], dtype: str | None = None) -> dict[str, str]:
    """Reads ``-c`` and ``--dtype``: texts by the names of `OPTIONS`, and ``preset``. If a name is given twice, the last
    word applies, so words override a file before them.
    """
    found: dict[str, str] = {}
    for word in words:
        is_file = word.endswith(".toml") and "=" not in word
        found |= read_toml(Path(word), f"-c {word}", _of_table) if is_file else split_settings([word], SETTINGS)
    if dtype is not None:
        if found.get("dtype", dtype) != dtype:
            raise UsageProblem(f"--dtype {dtype}: -c dtype={found['dtype']} contradicts it; leave one of them out")
        found["dtype"] = dtype
    return found


SETTINGS = ("preset", *OPTIONS)
"""The names that ``-c`` accepts."""


def _of_table(data: Mapping[str, Any]) -> dict[str, str]:
    return split_settings([f"{name}={as_words(name, value)}" for name, value in data.items()], SETTINGS)


def _settings_offered(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    name, equals, _ = typed.partition("=")
    if not equals:
        return [f"{one}=" for one in SETTINGS if one.startswith(typed)]
    values = PRESETS if name == "preset" else OPTIONS[name].choices if name in OPTIONS else ()
    return [word for value in values if (word := f"{name}={value}").startswith(typed)]


def settings_option(more: str = "") -> Callable[[Command], Command]:
    """Returns the option ``-c``, as words. ``more`` says which other values it accepts."""
    return click.option(
        "-c",
        "--config",
        "words",
        multiple=True,
        metavar="NAME=VALUE",
        shell_complete=_settings_offered,
        help=f"Set the configuration: stages=4, preset=1cta, ... (harness list shows all), or FILE.toml.{more}",
    )


dtype_option = click.option(
    "--dtype", type=click.Choice(DTYPES), metavar="TYPE", help=f"Type of A and B: {', '.join(DTYPES)}."
)
config_options = group("config", _config, settings_option(), dtype_option)
SEVERAL = " stages=3:5 and cluster=2x1,4x1 give several values."
several_config_options = group("configs", several_configs, settings_option(SEVERAL), dtype_option)
"""Gives a command one `ConfigOptions` for each combination of values."""


# ---- how it runs ----

device_option = click.option(
    "--device",
    type=click.Choice(CHOICES),
    default="auto",
    metavar="DEVICE",
    help="gpu, emulator, or auto: a GPU if there is one.  [default: auto]",
)


run_options = together(device_option, emulation_options(*EMULATED, gpu=True))
"""Gives a command ``device`` and ``emulation``."""

ptx_option = click.option(
    "--ptx",
    "ptx_file",
    metavar="FILE",
    type=NamedPath(path_type=Path),
    help="Run this PTX in place of the compiled kernel.",
)
no_save_option = click.option("--no-save", is_flag=True, help="Do not add anything to results/.")
