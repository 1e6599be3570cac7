"""Writes a launch file for a user to complete: it has what the PTX says, and marks what only the user knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from emugpu.launch.listing import ListedKernel, ListedParameter, Listing
from emugpu.launch.spec import DATA_TYPES, INITS

_NUMBERS = {"f16": "0.0", "f32": "0.0", "f64": "0.0"}


def launch_template(ptx: Path, listing: Listing, kernel: ListedKernel) -> str:
    """Returns the text of a launch file for one kernel. ``ptx`` is its path, relative to the launch file."""
    names = {p.index: f"p{p.index}" for p in kernel.parameters if _needs_buffer(p)}
    return "\n".join(
        [
            *_head(ptx, listing, kernel),
            "",
            *_buffers(kernel, names),
            *_symbols(listing),
            *_maps(kernel, names),
            "",
            *_launch(kernel, names),
            "",
            "# What buffers hold at the end: an expression over their first values, in float64, or a .npy file.",
            "# Without an expectation, only the rules of the machine are checked.",
            "# [expect]",
            *(f'# {name} = "..."    # or {{ value = "...", tolerance = 1e-2 }}' for name in list(names.values())[-1:]),
            "",
        ]
    )


def _head(ptx: Path, listing: Listing, kernel: ListedKernel) -> Iterator[str]:
    yield f"# How {kernel.readable} is launched. Fill in what is marked FILL IN, then: emugpu run THIS-FILE"
    others = [k.readable for k in listing.kernels if k is not kernel]
    if others:
        yield f"# Other kernels of the file: {', '.join(others)}"
    for refusal in kernel.unimplemented[:10]:
        yield f"# Not implemented, line {refusal.line}: {refusal.text}"
    yield f"ptx = {_quoted(str(ptx))}"


def _buffers(kernel: ListedKernel, names: dict[int, str]) -> Iterator[str]:
    yield "[buffers]"
    yield f"# dtype: {', '.join(DATA_TYPES)}"
    yield f"# init: {', '.join(INITS)}, a number, or a .npy file"
    for parameter in kernel.parameters:
        if parameter.index in names:
            shape = "[128, 64]" if parameter.seems == "tensor map" else "[1024]"
            yield (
                f'{names[parameter.index]} = {{ dtype = "f32", shape = {shape}, init = "integer" }}'
                f"    # FILL IN: {_quoted(parameter.name)}"
            )


def _symbols(listing: Listing) -> Iterator[str]:
    if listing.symbols:
        yield ""
        yield "# Variables of the module, set before the first launch; [expect] may name them, too."
        yield "# [symbols]"
        for _, name, size in listing.symbols[:10]:
            yield f'# {name} = {{ dtype = "u8", shape = [{size}], init = "zeros" }}'


def _maps(kernel: ListedKernel, names: dict[int, str]) -> Iterator[str]:
    found = [p for p in kernel.parameters if p.seems == "tensor map"]
    if not found:
        return
    yield ""
    yield "[maps]"
    yield "# tile: rows and columns of the box; or box, dims and strides as in the driver API, innermost first"
    for parameter in found:
        yield (
            f'map{parameter.index} = {{ buffer = "{names[parameter.index]}", tile = [128, 32], swizzle = "128B" }}'
            "    # FILL IN"
        )


def _launch(kernel: ListedKernel, names: dict[int, str]) -> Iterator[str]:
    yield "# Several launches, in order: [[launch]] for each"
    yield "[launch]"
    yield f"kernel = {_quoted(kernel.name)}"
    cluster, block = kernel.directives.get("reqnctapercluster"), kernel.directives.get("reqntid")
    yield f"grid = {list(cluster) if cluster else [1]}    # FILL IN: CTAs along x, y, z"
    if cluster:
        yield f"# cluster = {list(cluster)}, as the PTX says"
    if block:
        yield f"# block = {list(block)}, as the PTX says"
    else:
        most = kernel.directives.get("maxntid")
        yield f"block = {list(most) if most else [128]}    # FILL IN: threads along x, y, z" + (
            f"; at most {'x'.join(map(str, most))}" if most else ""
        )
    if kernel.dynamic_shared:
        yield "dynamic_shared = 0    # FILL IN: bytes"
    if not kernel.parameters:
        return
    yield "arguments = ["
    for parameter in kernel.parameters:
        yield f"    {_argument(parameter, names)},    # {parameter.index}: {_about(parameter)}"
    yield "]"


def _argument(parameter: ListedParameter, names: dict[int, str]) -> str:
    if parameter.seems == "tensor map":
        return f'"map{parameter.index}"'
    if parameter.index in names:
        return f'"{names[parameter.index]}"'
    if parameter.seems.startswith("struct"):
        return '"null"'
    return _NUMBERS.get(parameter.seems, "0")


def _about(parameter: ListedParameter) -> str:
    text = f"{parameter.name}, {parameter.seems}, {parameter.bytes} bytes aligned to {parameter.align}"
    if _needs_buffer(parameter):
        return text
    if parameter.seems.startswith("struct"):
        text += '; "null" is all zeros, { fields = [...] } its members'
    return f"{text}; FILL IN"


def _needs_buffer(parameter: ListedParameter) -> bool:
    return parameter.seems in ("pointer", "tensor map")


def _quoted(text: str) -> str:
    """Returns a TOML basic string."""
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
