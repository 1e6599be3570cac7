"""The table of the options of a kernel.

`harness.compile.config.KernelConfig`, the options of the commands, the grids of sweeps, the cases of suites, what-if,
and the commands that repeat a run follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from emugpu.errors import UsageProblem
from harness.compile.catalog import (
    ARCHITECTURES,
    CLC_DEPTHS,
    EPILOGUE_WIDTHS,
    LARGEST_CLUSTER,
    LAYOUTS,
    RASTER_GROUPS,
    SCALES,
    SCHEDULERS,
)
from harness.epilogues import EPILOGUES, NONE, find_epilogue
from harness.problem import C_TYPES, DTYPES

SWITCH = {"yes": True, "true": True, "no": False, "false": False}
"""The words for an option that is on or off."""
THE_KERNELS = "[default: the kernel's]"


@dataclass(frozen=True)
class Option:
    """Describes one option. A number is a whole one, a pair is two of them (``4x2``), a switch is on or off, a word is
    one of the ``choices``.

    ``help`` explains the option and its default. ``written`` shows how one value is written, ``several`` how several
    are, and ``example`` is an example of a pair.

    ``offered`` lists the values to suggest in place of one that the kernels refuse. ``distance`` measures how far a
    value is from the requested one, and ``bound`` is the text that suggests the nearest.

    ``case`` shows how a value is written in the id of a suite's case, if not as ``name={}``. ``default`` is the value
    if none is requested and no kernel chooses one. A ``persistent`` option belongs only to kernels whose CTAs compute
    tile after tile. ``least`` is the smallest number that the command line accepts. With ``takes_file`` a Mojo file is
    a value, too, and with ``takes_auto`` the word auto requests nothing.
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
    case: str = ""
    default: Any = None
    persistent: bool = False
    least: int = 0
    takes_file: bool = False
    takes_auto: bool = False

    @property
    def words(self) -> str:
        """Returns the name as messages write it."""
        return self.name.replace("_", " ")

    def parse(self, text: str) -> Any:
        """Reads one value. Raises `UsageProblem` for text that is not a value."""
        if self.kind == "pair":
            return self._parse_pair(text)
        if self.takes_auto and text == "auto":
            return None
        if self.kind == "switch":
            if text.lower() not in SWITCH:
                raise UsageProblem(f"{text!r} is neither yes nor no; write yes or true, no or false")
            return SWITCH[text.lower()]
        if self.takes_file:
            return find_epilogue(text).word
        if self.kind == "word":
            if text not in self.choices:
                raise UsageProblem(f"there is no {self.words} {text!r}; use one of: {', '.join(self.choices)}")
            return text
        if not text.isascii() or not text.isdecimal() or len(text) > 6:
            rule = "above 999999" if text.isdecimal() else "not a whole number"
            raise UsageProblem(f"{self.words} {text!r} is {rule}; write {self.written or 'for example 2'}")
        if int(text) < (self.least or 0):
            raise UsageProblem(f"{self.words} {text} is not at least {self.least}; write {self.written or self.least}")
        return int(text)

    def _parse_pair(self, text: str) -> tuple[int, int]:
        parts = text.lower().split("x")
        if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
            raise UsageProblem(f"{self.words} {text!r} is not {self.written}; write for example {self.example}")
        return int(parts[0]), int(parts[1])

    def read(self, value: object) -> Any:
        """Reads a value of a TOML file, which has types for numbers and switches."""
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
        """Converts a value to that of a TOML or JSON file, for `read`."""
        return self.show(value) if self.kind == "pair" else value

    def show(self, value: Any) -> str:
        """Writes a value as `parse` reads it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def setting(self, value: Any) -> str:
        """Writes the option with a value as `parse_settings` reads it."""
        return f"{self.name}={self.show(value)}"

    def in_case(self, value: Any) -> str:
        """Writes the option with a value in the id of a suite's case."""
        shown = self.show(value) if self.kind == "pair" else value
        return (self.case or f"{self.name.replace('_', '-')}={{}}").format(shown)


def _distance(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Returns the differences of rows and of columns; rows count first."""
    return abs(one[0] - other[0]), abs(one[1] - other[1])


def _one_of(values: tuple[int, ...]) -> str:
    return "|".join(map(str, sorted(values)))


OPTIONS = {
    option.name: option
    for option in (
        Option("arch", "word", "GPU architecture.  [default: the GPU's, else the kernel's first]",
               choices=tuple(ARCHITECTURES), offered=tuple(ARCHITECTURES), case="{}", takes_auto=True),
        Option("dtype", "word", "Of A and B.  [default: bf16, of kernel9 nvfp4]", several="bf16,fp16", choices=DTYPES,
               offered=DTYPES),
        Option("scales", "word", "Scale factors of e4m3: one for A and one for B, or one for each 1x128 of A and "
               "128x128 of B.  [default: tensor]", several="tensor,block", choices=SCALES, offered=SCALES),
        Option("out_dtype", "word", "Of C.  [default: that of A and B; where they have scale factors, bf16]",
               several="bf16,f32", choices=tuple(C_TYPES), offered=tuple(C_TYPES)),
        Option("cta_group", "number", "CTAs that work on one MMA: 1, or 2 (a pair).  [default: the architecture's]",
               written="1|2", several="1,2", offered=(1, 2), case="cta_group={}"),
        Option("mma_shape", "pair", "Tile of one MMA, of both CTAs together in a pair; on sm_90a the tile of a CTA.  "
               "[default: the largest, of kernel8 by the problem]", written="MxN", several="128x256,256x256",
               example="256x256", case="mma={}",
               offered=tuple((rows, columns) for rows in (256, 128, 64) for columns in range(256, 0, -16)),
               distance=_distance),
        Option("stages", "number", f"Depth of the shared-memory ring.  {THE_KERNELS}", several="3:6",
               offered=tuple(range(16, 0, -1)), distance=lambda one, other: abs(one - other), bound="at most {}"),
        Option("cluster", "pair", "CTAs along M x along N.  [default: the architecture's, of kernel8 by the problem]",
               written="CMxCN", several="2x1,4x4", example="4x4 (4 CTAs along M, 4 along N)",
               offered=tuple((m, n) for m in range(1, LARGEST_CLUSTER + 1) for n in range(1, LARGEST_CLUSTER + 1)
                             if m * n <= LARGEST_CLUSTER),
               distance=lambda one, other: (sum(_distance(one, other)), -one[0] * one[1])),
        Option("epilogue_width", "number", f"Columns of C in one TMA store.  {THE_KERNELS}", case="epilogue={}",
               written=_one_of(EPILOGUE_WIDTHS), several="16,32,64", offered=EPILOGUE_WIDTHS),
        Option("multicast", "switch", "CTAs of a cluster send slices to each other, or each loads its own.  "
               "[default: multicast]", several="true,false", offered=(False,), case="no-multicast", default=True),
        Option("scheduler", "word", "Where the next tile comes from: cluster launch control, a fixed list, a counter, "
               f"or there is none.  {THE_KERNELS}", several="clc,static", choices=SCHEDULERS, offered=SCHEDULERS,
               persistent=True),
        Option("raster_group", "number", f"Columns of cluster tiles that are walked along M together.  {THE_KERNELS}",
               written=_one_of(RASTER_GROUPS), several="1,4,8,16", offered=RASTER_GROUPS,
               distance=lambda one, other: abs(one - other), persistent=True),
        Option("accumulators", "number", f"Accumulators in tensor memory, filled in turn.  {THE_KERNELS}",
               written="1|2", several="1,2", offered=(1, 2), persistent=True),
        Option("clc_depth", "number", f"CLC response slots.  {THE_KERNELS}",
               written=_one_of(CLC_DEPTHS), several="1:3", offered=CLC_DEPTHS, persistent=True),
        Option("sms", "number", "SMs to fill with persistent clusters.  [default: a B200's or H200's]",
               several="64,132", offered=tuple(range(1, LARGEST_CLUSTER + 1)), bound="{} or more", persistent=True,
               least=1),
        Option("ping_pong", "switch", f"On sm_90a: each warpgroup its own tiles, or halves of each.  {THE_KERNELS}",
               several="true,false", persistent=True),
        Option("split_k", "number", "CTAs that each multiply a part of K of a tile.  [default: auto, by the problem]",
               written="auto|1..16", several="1,2,4", offered=tuple(range(1, 17)), takes_auto=True,
               distance=lambda one, other: abs(one - other), persistent=True, least=1),
        Option("layout", "word", "How A and B lie, in the letters of BLAS: n is A [M, K] and B [K, N], t is A [K, M] "
               "and B [N, K].  [default: nt]", several="nt,nn", choices=LAYOUTS, offered=LAYOUTS, default="nt"),
        Option("swapped", "switch", "Rows of B along the MMA's M, those of A along its N.  [default: by the "
               "problem]", several="true,false", offered=(False,), persistent=True),
        Option("epilogue", "word", "What kernel8 makes of the product before it is C: one of "
               f"{', '.join(EPILOGUES)}, or a Mojo file with one of your own.  [default: none]",
               written="NAME|FILE.mojo", several="bias,relu", choices=tuple(EPILOGUES), offered=(NONE,), default=NONE,
               persistent=True, takes_file=True),
    )
}  # fmt: skip
"""All options by their names, in the order in which they are shown."""

TUNABLE = {name: option for name, option in OPTIONS.items() if name != "arch"}
"""The options of which a sweep can try several values, or what-if another."""


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """Reads ``stages=3 ping_pong=false``, one word for each option."""
    return {name: OPTIONS[name].parse(text) for name, text in split_settings(words, OPTIONS).items()}


def split_settings(words: Sequence[str], names: Collection[str]) -> dict[str, str]:
    """Splits ``NAME=VALUE`` words. If a name is given twice, the last word counts. Raises UsageProblem for a name that
    is not in ``names``.
    """
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        if name not in names or not equals:
            raise UsageProblem(f"{word!r} is no option of a kernel; write NAME=VALUE, of: {', '.join(names)}")
        found[name] = value.strip()
    return found
