"""The options of a kernel's configuration, each stated once: what it means, what it may be, how its values are written.

`KernelConfig`, the options of the commands, the grids of sweeps, the cases of suites, what-if, and the commands that
repeat a run follow from this table. Which values are legal together, and what an option is where nothing is asked for,
the kernels say (`harness.build.planner`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from harness.build.catalog import (
    ARCHITECTURES,
    CLC_DEPTHS,
    EPILOGUE_WIDTHS,
    LARGEST_CLUSTER,
    RASTER_GROUPS,
    SCHEDULERS,
)
from harness.errors import UsageProblem
from harness.problem.dtypes import ELEMENT_TYPES

SWITCH = {"yes": True, "true": True, "no": False, "false": False}
"""What an option that is on or off can be written as."""
THE_KERNELS = "[default: the kernel's]"


@dataclass(frozen=True)
class Option:
    """One option. A number is a whole one, a pair is two of them (``4x2``), a switch is on or off, a word is one of the
    choices.

    help: what it is, and where its default comes from. written: how one value is written, several: how many are.
    example: of a pair.
    offered: values that are worth trying in the place of one that the kernels refuse; distance: how far such a value is
    from that which is wanted; bound: how a nearer one is proposed. parts: the kernels' names of the two of a pair.
    off: the flag that turns a switch off. label: its name in the id of a suite's case, if not its own. default:
    what it is where nothing is asked for, if no kernel decides that. persistent: only of kernels whose CTAs compute
    tile after tile.
    """

    name: str
    kind: Literal["number", "pair", "switch", "word"]
    help: str
    written: str = ""
    several: str = ""
    example: str = ""
    choices: tuple[str, ...] = ()
    offered: tuple[Any, ...] = ()
    distance: Callable[[Any, Any], Any] | None = None
    bound: str = ""
    parts: tuple[str, ...] = ()
    off: str = ""
    label: str = ""
    default: Any = None
    persistent: bool = False

    @property
    def words(self) -> str:
        """The name as it is said to people."""
        return self.name.replace("_", " ")

    @property
    def flag(self) -> str:
        """The option of a command."""
        return f"--{self.name.replace('_', '-')}"

    def parse(self, text: str) -> Any:
        """Reads one value; raises `UsageProblem` for text that is none."""
        if self.kind == "pair":
            return self._parse_pair(text)
        if self.kind == "switch":
            if text.lower() not in SWITCH:
                raise UsageProblem(f"{text!r} is neither yes nor no; write yes or true, no or false")
            return SWITCH[text.lower()]
        if self.kind == "word":
            if text not in self.choices:
                raise UsageProblem(f"there is no {self.words} {text!r}; use one of: {', '.join(self.choices)}")
            return text
        if not text.isascii() or not text.isdecimal() or len(text) > 6:
            raise UsageProblem(f"{text!r} is not a whole number")
        return int(text)

    def _parse_pair(self, text: str) -> tuple[int, int]:
        parts = text.lower().split("x")
        if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
            raise UsageProblem(f"{self.words} {text!r} is not {self.written}; write for example {self.example}")
        return int(parts[0]), int(parts[1])

    def read(self, value: object) -> Any:
        """Takes a value from a TOML file, where numbers and switches are written as such."""
        if self.kind == "number":
            if not isinstance(value, int) or isinstance(value, bool):
                raise UsageProblem(f"{self.name} is {value!r}; it must be a whole number")
            return value
        if self.kind == "switch":
            if not isinstance(value, bool):
                raise UsageProblem(f"{self.name} is {value!r}; write true or false")
            return value
        if not isinstance(value, str):
            raise UsageProblem(f"{self.name} is {value!r}; it must be a text")
        return self.parse(value)

    def write(self, value: Any) -> Any:
        """Gives a value as a TOML or JSON file has it, for `read`."""
        return self.show(value) if self.kind == "pair" else value

    def show(self, value: Any) -> str:
        """Writes a value as `parse` reads it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def arguments(self, value: Any) -> list[str]:
        """Writes the option with a value on a command line."""
        if self.kind == "switch":
            return [self.flag if value else self.off]
        return [self.flag, self.show(value)]

    def in_case(self, value: Any) -> str:
        """Writes the option with a value in the id of a suite's case."""
        if self.name == "multicast":
            return "no-multicast"
        if self.name == "arch":
            return str(value)
        shown = self.show(value) if self.kind == "pair" else value
        return f"{self.label or self.name.replace('_', '-')}={shown}"


def _distance(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Counts rows first."""
    return abs(one[0] - other[0]), abs(one[1] - other[1])


def _one_of(values: tuple[int, ...]) -> str:
    return "|".join(map(str, sorted(values)))


OPTIONS = {
    option.name: option
    for option in (
        Option("arch", "word", "GPU architecture.  [default: the GPU's, else the kernel's first]",
               choices=tuple(ARCHITECTURES), offered=tuple(ARCHITECTURES)),
        Option("dtype", "word", "Of A, B and C.  [default: bf16]", several="bf16,fp16", choices=tuple(ELEMENT_TYPES),
               default="bf16"),
        Option("cta_group", "number", "CTAs that work on one MMA: 1, or 2 (a pair).  [default: the architecture's]",
               written="1|2", several="1,2", offered=(1, 2), label="cta_group"),
        Option("mma_shape", "pair", "Tile of one MMA, of both CTAs together in a pair; on sm_90a the tile of a CTA.  "
               "[default: the largest]", written="MxN", several="128x256,256x256", example="256x256", label="mma",
               offered=tuple((rows, columns) for rows in (256, 128, 64) for columns in range(256, 0, -16)),
               distance=_distance, parts=("mma_m", "mma_n")),
        Option("stages", "number", f"Depth of the shared-memory ring.  {THE_KERNELS}", several="3:6",
               offered=tuple(range(16, 0, -1)), distance=lambda one, other: abs(one - other), bound="at most {}"),
        Option("cluster", "pair", "CTAs along M x CTAs along N.  [default: the architecture's]", written="CMxCN",
               several="2x1,4x4", example="4x4 (4 CTAs along M, 4 along N)",
               offered=tuple((m, n) for m in range(1, LARGEST_CLUSTER + 1) for n in range(1, LARGEST_CLUSTER + 1)
                             if m * n <= LARGEST_CLUSTER),
               distance=lambda one, other: (sum(_distance(one, other)), -one[0] * one[1]),
               parts=("cluster_m", "cluster_n")),
        Option("epilogue_width", "number", f"Columns of C in one TMA store.  {THE_KERNELS}", label="epilogue",
               written=_one_of(EPILOGUE_WIDTHS), several="16,32,64", offered=EPILOGUE_WIDTHS),
        Option("multicast", "switch", "CTAs of a cluster send slices to each other, or each loads its own.  "
               "[default: multicast]", several="true,false", offered=(False,), off="--no-multicast", default=True),
        Option("scheduler", "word", "Where the next tile comes from: cluster launch control, a fixed list, a counter, "
               f"or there is none.  {THE_KERNELS}", several="clc,static", choices=SCHEDULERS, offered=SCHEDULERS,
               persistent=True),
        Option("raster_group", "number", f"Columns of cluster tiles that are walked along M together.  {THE_KERNELS}",
               written=_one_of(RASTER_GROUPS), several="1,4,8,16", offered=RASTER_GROUPS,
               distance=lambda one, other: abs(one - other), persistent=True),
        Option("accumulators", "number", f"Accumulators in tensor memory, filled in turn.  {THE_KERNELS}",
               written="1|2", several="1,2", offered=(1, 2), persistent=True),
        Option("clc_depth", "number", f"Responses of cluster launch control that are kept.  {THE_KERNELS}",
               written=_one_of(CLC_DEPTHS), several="1:3", offered=CLC_DEPTHS, persistent=True),
        Option("sms", "number", "SMs that a persistent launch uses.  [default: a B200's or H200's]", several="64,132",
               offered=tuple(range(1, LARGEST_CLUSTER + 1)), bound="{} or more", persistent=True),
        Option("ping_pong", "switch", f"On sm_90a: warpgroups take tiles in turn, or halves of each.  {THE_KERNELS}",
               several="true,false", off="--cooperative", persistent=True),
    )
}  # fmt: skip
"""All options by their names, in the order in which they are shown."""

TUNABLE = {name: option for name, option in OPTIONS.items() if name != "arch"}
"""Those of which a sweep can try several values, or what-if another."""


def parse_settings(words: list[str]) -> dict[str, Any]:
    """Reads ``stages=3 ping_pong=false``, one word for each option."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in OPTIONS or not equals:
            raise UsageProblem(f"{word!r} is no option of a kernel; write NAME=VALUE, of: {', '.join(OPTIONS)}")
        found[name] = OPTIONS[name].parse(value)
    return found
