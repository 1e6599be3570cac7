"""Builds the command that repeats a run: the kernel, and every option that differs from the command's defaults."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from emugpu.cli.emulation import Emulation, emulation_words
from emugpu.cli.verdicts import DEFAULTS
from emugpu.errors import UsageProblem
from harness.compile.compiler import find_gpus
from harness.compile.config import KernelConfig
from harness.compile.options import OPTIONS
from harness.compile.presets import configure
from harness.problem import Shape
from harness.run.case import Request


def command_of(request: Request, command: str = "run") -> str:
    """Returns the ``harness run`` or ``harness verify`` command of a request. verify always uses the emulator."""
    on_gpu = command == "run" and request.gpu is not None
    usual = "index" if command == "verify" else "normal" if on_gpu else "integer"
    inputs = request.inputs if request.inputs != usual else ""
    words = ["harness", command, *kernel_words(request.config, request.shape, inputs, request.seed, on_gpu)]
    if request.ptx:
        words += ["--ptx", str(request.ptx)]
    if on_gpu:
        return shlex.join(words)
    if command == "run" and find_gpus():
        words += ["--device", "emulator"]
    emulation = Emulation(request.emulation, request.schedules, request.ptxas)
    return shlex.join([*words, *emulation_words(emulation, **(DEFAULTS if command == "verify" else {}))])


def kernel_words(
    config: KernelConfig, shape: Shape, inputs: str = "", seed: int = 0, on_gpu: bool = False
) -> list[str]:
    """Returns the words for a kernel (its name or its own file), its configuration and its problem.

    ``inputs`` is empty if they are the command's default. ``on_gpu`` says that the kernel ran on a GPU of this machine.
    """
    asked = _config_arguments(config, shape)
    if on_gpu:  # the GPU decides the architecture, and a tuned configuration may exist for it
        asked.pop("arch", None)
    words = [config.described_kernel.word]
    words += ["-c", "preset=default"] if on_gpu and not asked.keys() - {"dtype"} else []
    for name, value in asked.items():
        words += ["--dtype", str(value)] if name == "dtype" else ["-c", OPTIONS[name].setting(value)]
    words += ["--shape", shape.as_option]
    problem = {"groups": shape.groups_text, "masked": shape.masked, "inputs": inputs, "seed": seed}
    return [*words, *(word for name, value in problem.items() if value for word in ("--problem", f"{name}={value}"))]


def _config_arguments(config: KernelConfig, shape: Shape) -> dict[str, Any]:
    """Returns the options that lead from the defaults to this configuration."""
    asked: dict[str, Any] = {}
    options = config.arguments()
    for name in OPTIONS:
        found = _configured(options["kernel"], shape, asked)
        if found is None or found.arguments()[name] != options[name]:
            asked[name] = options[name]
    if _configured(options["kernel"], shape, asked) == config:
        return asked
    return {name: options[name] for name in OPTIONS}  # an earlier option depends on a later one


def _configured(kernel: str, shape: Shape, asked: Mapping[str, Any]) -> KernelConfig | None:
    try:
        return configure(kernel, shape=shape, **asked)
    except UsageProblem:
        return None
