"""What the Mojo side is asked to compile: the planner, and programs that hold the PTX of kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.build.options import OPTIONS

_MOJO_TYPES = {"bf16": "DType.bfloat16", "fp16": "DType.float16"}

PLANNER = "from kernels.plan import plan_main\n\n\ndef main():\n    plan_main()\n"


def parameters(options: Mapping[str, Any]) -> dict[str, str | int | bool]:
    """Options by the names that the kernels give them; None is left out."""
    found: dict[str, str | int | bool] = {}
    for name, value in options.items():
        if name in OPTIONS and OPTIONS[name].parts and value is not None:
            found |= dict(zip(OPTIONS[name].parts, value, strict=True))
        elif value is not None:
            found[name] = value
    return found


def driver_source(kernels: Sequence[Mapping[str, Any]]) -> str:
    """A program for ``kernels/emit.mojo``. It knows each configuration, given by its options, by its place in the list.
    What is left out the kernel chooses."""
    return f"{_IMPORTS}\n\ndef main():\n{_emit(kernels, 4)}"


def planner_source_with(options: Mapping[str, Any]) -> str:
    """The planner, and a program that holds the PTX of one kernel, in one."""
    return (
        f"{_IMPORTS}from kernels.plan import plan_main\nfrom std.sys import argv\n\n\ndef main():\n"
        f'    if len(argv()) > 1 and argv()[1] == "ptx":\n{_emit([options], 8)}    else:\n        plan_main()\n'
    )


_IMPORTS = "from kernels.common.config import GemmConfig\nfrom kernels.emit import emit_main\n"


def _emit(kernels: Sequence[Mapping[str, Any]], indent: int) -> str:
    margin = " " * indent
    lines = "".join(f"{margin}    {_gemm_config(options)},\n" for options in kernels)
    return f"{margin}emit_main[\n{lines}{margin}]()\n"


def _gemm_config(options: Mapping[str, Any]) -> str:
    named = parameters(options)
    kernel = named.pop("kernel")
    named["dtype"] = _MOJO_TYPES[options["dtype"]]
    words = (
        f"{name}={json.dumps(value) if isinstance(value, str) and name != 'dtype' else value}"
        for name, value in named.items()
    )
    return f"GemmConfig({json.dumps(kernel)}, {', '.join(words)})"
