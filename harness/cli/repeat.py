"""The command that does a run again."""

from __future__ import annotations

import shlex

from emugpu.launch.launching import EmulationOptions
from harness.compile.config import OPTIONS, KernelConfig, find_kernel
from harness.problem import Shape
from harness.run.runner import EMULATED_GPU, Request


def command_of(request: Request) -> str:
    """``harness run`` with everything said, so that no default can change what it does."""
    words = ["harness", "run", *kernel_words(request.config, request.shape)]
    if request.ptx:
        words += ["--ptx", str(request.ptx)]
    device = "gpu" if request.gpu else EMULATED_GPU if request.through_max else "emulator"
    words += ["--inputs", request.inputs, "--seed", str(request.seed), "--device", device]
    if not request.ptxas:
        words.append("--no-ptxas")
    return shlex.join(words if request.gpu else [*words, *_emulation(request)])


def check_command_of(request: Request, schedules: int) -> str:
    """``harness check`` of the same, wherever it ran itself."""
    words = ["harness", "check", *kernel_words(request.config, request.shape)]
    return shlex.join([*words, "--inputs", request.inputs, "--seed", str(request.seed), "--schedules", str(schedules)])


def kernel_words(config: KernelConfig, shape: Shape) -> list[str]:
    """Returns a kernel (its name, or the file of one's own), its configuration and a shape, with everything said."""
    groups = ["--groups", shape.groups_text] if shape.groups else []
    groups += ["--masked", str(shape.masked)] if shape.masked else []
    kernel = find_kernel(config.kernel).file or config.kernel
    return [kernel, *_config(config), "--shape", shape.as_option, *groups]


def verify_command_of(target: list[str], emulation: EmulationOptions) -> str:
    """``harness verify`` of a target under one schedule."""
    words = ["harness", "verify", *target, "--schedules", "1", "--schedule", emulation.schedule]
    if emulation.schedule == "random":
        words += ["--schedule-seed", str(emulation.seed)]
    if emulation.accumulation != "f32":
        words += ["--accumulation", emulation.accumulation]
    return shlex.join([*words, *_limits(emulation, "resident_clusters", "timeout")])


def _config(config: KernelConfig) -> list[str]:
    """Everything that the kernel has a use for; a number is 0 where it has none."""
    walks = find_kernel(config.kernel).is_persistent
    given = {option: getattr(config, name) for name, option in OPTIONS.items() if walks or not option.persistent}
    return [word for option, value in given.items() if value != 0 or value is False for word in option.arguments(value)]


def _emulation(request: Request) -> list[str]:
    """What differs from the defaults, and the schedule."""
    options = request.emulation
    words = ["--schedule", options.schedule]
    if request.schedules > 1:
        words = ["--schedules", str(request.schedules)]
    if options.schedule == "random" or request.schedules > 1:
        words += ["--schedule-seed", str(options.seed)]
    if options.accumulation != "f32":
        words += ["--accumulation", options.accumulation]
    if options.uninitialised != "poison":
        words += ["--uninitialised", options.uninitialised]
    if options.engine != "native":
        words += ["--engine", options.engine]
    if options.jobs > 1:
        words += ["--jobs", str(options.jobs)]
    words += _limits(options, "resident_clusters", "max_steps", "timeout")
    if not options.strict:
        words.append("--no-strict")
    return [*words, *(word for rule in options.allow for word in ("--allow", rule))]


def _limits(options: EmulationOptions, *names: str) -> list[str]:
    given = [(name, value) for name in names if (value := getattr(options, name)) is not None]
    return [
        word
        for name, value in given
        for word in (f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value))
    ]
