"""Defines the options of a kernel, its presets, and its configurations.

`KernelConfig`, the options of the commands, the grids of sweeps, the cases of suites, what-if, and the commands that
repeat a run follow from the table of options. The kernels decide which values are legal together, and choose those that
are not requested (`harness.compile.planner`). An error of theirs suggests changes that were tried and work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import combinations, islice
from pathlib import Path
from typing import Any, Literal

from emugpu.errors import UsageProblem
from harness.compile import own_kernel, planner
from harness.compile.catalog import (
    ARCHITECTURES,
    CLC_DEPTHS,
    EPILOGUE_WIDTHS,
    KERNELS,
    LARGEST_CLUSTER,
    LAYOUTS,
    RASTER_GROUPS,
    SCALES,
    SCHEDULERS,
    Kernel,
)
from harness.compile.own_kernel import CHECKOUT, Sources
from harness.compile.planner import ConfigError
from harness.compile.tilings import OF_TILING, estimates, offered
from harness.epilogues import EPILOGUES, NONE, Epilogue, find_epilogue
from harness.problem import BF16, C_TYPES, DTYPES, ELEMENT_TYPES, FP8, Shape, check_dtype

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
            raise UsageProblem(f"{self.words} {text!r} is not a whole number; write {self.written or 'for example 2'}")
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


def find_kernel(word: str) -> Kernel:
    """Looks up a kernel by name, or reads the user's own from a Mojo file."""
    if word.endswith(".mojo"):
        return own_kernel.read(word)
    if word not in KERNELS:
        raise UsageProblem(f"there is no kernel {word!r}; use one of: {', '.join(KERNELS)}")
    return KERNELS[word]


def tilings(kernel: Kernel, arch: str, asked: Mapping[str, Any], shape: Shape | None) -> list[dict[str, Any]]:
    """Returns the options of each tiling that fits the request, the fastest first, or in the kernel's own order without
    a problem. Returns one empty tiling if the kernel has no tilings or none fits.
    """
    if not kernel.tilings:
        return [{}]
    if shape:
        return [one.options for one in estimates(kernel, arch, asked, shape)] or [{}]
    whole = [one for one in offered(kernel, arch, asked) if one.most_m is None]
    return [{name: getattr(one, name) for name in OF_TILING} for one in whole] or [{}]


Change = Mapping[str, Any]
"""Options with their new values. None leaves an option out."""
SHOWN = 2


def advise(refusal: ConfigError, asked: Change, works: Callable[[Change], bool]) -> UsageProblem:
    """Adds suggestions to an error: changes that work with all other requested options.

    If no single change works, suggests leaving out as few options as possible.
    """

    def works_with(changes: Iterable[Change], most: int) -> list[Change]:
        return list(islice((change for change in changes if works({**asked, **change})), most))

    own, out = _settings(refusal.subject, asked), {refusal.subject: None}
    instead = [way for name in refusal.instead for way in works_with(_settings(name, asked), 1)]
    if "kernel" in refusal.instead:  # it is the kernel that cannot do it
        ways = [*instead, *works_with([out], 1)]
    else:
        several = SHOWN if not _bound(refusal.subject) else 1
        found = works_with(own, several)
        ways = [*(found[:1] or works_with([out], 1)), *instead, *found[1:]]
    ways = ways[:SHOWN]
    if not ways:
        others = [name for name in OPTIONS if name != refusal.subject and asked.get(name) is not None]
        subsets = (subset for size in range(len(others) + 1) for subset in combinations(others, size))
        without: Iterator[Change] = (dict.fromkeys((refusal.subject, *subset)) for subset in subsets)
        ways = list(islice((change for change in without if works({**asked, **change})), 1))
    return UsageProblem(f"{refusal}; {_in_words(ways, refusal.subject)}" if ways else str(refusal))


def _settings(name: str, asked: Change) -> list[Change]:
    """Returns the changes of one option to its offered values, the nearest to the requested one first. Leaves out an
    option without offered values, and a switch that was requested.
    """
    wanted = asked.get(name)
    if name in OPTIONS and OPTIONS[name].kind == "switch" and wanted != OPTIONS[name].default:
        return [{name: None}]
    offered = tuple(KERNELS) if name == "kernel" else OPTIONS[name].offered or (None,)
    values: list[Any] = [value for value in offered if value != wanted]
    distance = None if name == "kernel" else OPTIONS[name].distance
    if wanted is not None and distance is not None:
        values.sort(key=lambda value: distance(value, wanted))
    return [{name: value} for value in values]


def _in_words(ways: list[Change], subject: str) -> str:
    """Writes, for example, ``use 128x64, or cta_group=1``, ``use 1 or 2``, or ``use static, or leave out sms``."""
    values = [_value(way, subject) for way in ways if None not in way.values()]
    alike = all(set(way) == set(ways[0]) for way in ways)
    words = [f"use {(' or ' if alike else ', or ').join(values)}"] if values else []
    words += [f"leave out {' and '.join(way)}" for way in ways if None in way.values()]
    return ", or ".join(words)


def _value(change: Change, subject: str) -> str:
    return " and ".join(_setting(name, value, subject) for name, value in change.items())


def _setting(name: str, value: object, subject: str) -> str:
    if name == "kernel":
        return str(value)
    if name == subject and _bound(name) and (name, value) != _LEAST:
        return _bound(name).format(value)
    is_subject = name == subject and not isinstance(value, bool)
    return OPTIONS[name].show(value) if is_subject else OPTIONS[name].setting(value)


_LEAST = ("stages", 1)
"""The smallest value. A suggestion does not say "at most" of it."""


def _bound(option: str) -> str:
    return "" if option == "kernel" else OPTIONS[option].bound


@dataclass(frozen=True)
class KernelConfig:
    """Holds one complete configuration of a kernel, as `make_config` makes it: everything the compiler needs to know.

    `OPTIONS` explains the fields, except ``grouped`` and ``masked``, which follow from the problem: whether it has
    groups, and how they lie in memory (docs/grouped.md). An option that a kernel does not use has its default here:
    ``clc_depth`` is 0 unless the scheduler is clc, and ``sms`` is 0 unless the launch is persistent. ``sources`` has
    the user's own kernel and epilogue.
    """

    kernel: str
    arch: str
    dtype: str
    scales: str
    out_dtype: str
    cta_group: int
    mma_shape: tuple[int, int]
    stages: int
    cluster: tuple[int, int]
    epilogue_width: int
    multicast: bool
    scheduler: str = "none"
    raster_group: int = 1
    accumulators: int = 1
    clc_depth: int = 0
    sms: int = 0
    ping_pong: bool = False
    split_k: int = 1
    layout: str = "nt"
    swapped: bool = False
    epilogue: str = NONE
    grouped: bool = False
    masked: bool = False
    sources: Sources = CHECKOUT

    @property
    def described_kernel(self) -> Kernel:
        """Returns the description of the kernel."""
        return self.sources.kernel or KERNELS[self.kernel]

    @property
    def fused_epilogue(self) -> Epilogue:
        """Returns the epilogue with its formula."""
        return self.sources.epilogue or EPILOGUES[self.epilogue]

    @property
    def label(self) -> str:
        """Returns a short name for tables."""
        unit = "pair" if self.cta_group == 2 else "1 CTA"
        blocks = " scales of blocks" if self.dtype == FP8 and self.scales == "block" else ""
        return (
            f"{self.kernel} {self.arch} {self.types}{blocks} {self.mma_shape[0]}x{self.mma_shape[1]} {unit} "
            f"cluster {self.cluster[0]}x{self.cluster[1]} stages {self.stages} epilogue {self.epilogue_width}"
            f"{'' if self.multicast else ' no multicast'}{'' if self.layout == 'nt' else f' {self.layout}'}{self._walk}"
        )

    @property
    def types(self) -> str:
        """Returns the type of A and B, and that of C if it is not the usual one."""
        usual = self.dtype if self.dtype in ELEMENT_TYPES else BF16.name
        return self.dtype if self.out_dtype == usual else f"{self.dtype} to {self.out_dtype}"

    @property
    def _walk(self) -> str:
        """Describes how a persistent kernel schedules its tiles; empty for other kernels."""
        if not self.described_kernel.is_persistent:
            return ""
        details = f" on {self.sms} SMs" if self.sms else f" depth {self.clc_depth}" if self.clc_depth else ""
        return (
            f" {self.scheduler}{details} group {self.raster_group}"
            f" accumulators {self.accumulators}{' ping-pong' if self.ping_pong else ''}"
            f"{f' split-K {self.split_k}' if self.split_k > 1 else ''}{' swapped' if self.swapped else ''}"
            f"{' masked' if self.masked else ' grouped' if self.grouped else ''}"
            f"{'' if self.epilogue == NONE else f' with {self.epilogue}'}"
        )

    def options(self) -> dict[str, Any]:
        """Returns all options, as the kernels know them."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "sources"}

    def arguments(self) -> dict[str, Any]:
        """Returns all options, as `make_config` takes them: with the files of the user's own kernel and epilogue."""
        return self.options() | {"kernel": self.described_kernel.word, "epilogue": self.fused_epilogue.word}

    def as_dict(self) -> dict:
        """Returns plain data for JSON that people read: the user's own kernel and epilogue have their names, which do
        not suffice to read the configuration back.
        """
        return {**self.options(), "mma_shape": list(self.mma_shape), "cluster": list(self.cluster)}

    def to_json(self) -> str:
        """Writes one line, which `from_json` reads: the user's own kernel and epilogue have their files."""
        return json.dumps(self.arguments())

    @classmethod
    def from_json(cls, text: str) -> KernelConfig:
        """Reads the configuration that `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        kernel, epilogue = find_kernel(values["kernel"]), find_epilogue(values["epilogue"])
        values |= {"kernel": kernel.name, "epilogue": epilogue.name}
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**options, sources=Sources.of(kernel, epilogue))


def make_config(
    kernel: str, *, shape: Shape | None = None, grouped: bool = False, masked: bool = False, **asked: Any
) -> KernelConfig:
    """Makes a configuration of a kernel, given by its name or, the user's own, by its file. Options that are None, and
    an ``arch`` of ``auto``, get defaults.

    ``asked`` has values by the names of `OPTIONS`. ``shape`` is the problem for which some kernels choose tile and
    cluster, unless they are requested. ``grouped`` and ``masked`` request a kernel for such groups; a shape that has
    groups does that, too.
    """
    unknown = asked.keys() - OPTIONS.keys()
    if unknown:
        raise TypeError(f"a configuration has no {', '.join(sorted(unknown))}; it has {', '.join(OPTIONS)}")
    given = {name: option.default if asked.get(name) is None else asked[name] for name, option in OPTIONS.items()}
    options = {
        "kernel": kernel,
        "grouped": grouped or masked,
        "masked": masked,
        **given,
        "arch": None if given["arch"] == "auto" else given["arch"],
    }
    try:
        return _complete(options, shape)
    except ConfigError as error:
        raise advise(error, options, lambda changed: _works(changed, shape)) from None


def try_config(kernel: str, *, shape: Shape | None = None, **asked: Any) -> KernelConfig:
    """Works as `make_config`, but raises `ConfigError` without suggestions, which take time if there are many calls."""
    options: dict[str, Any] = {**dict.fromkeys(OPTIONS), "kernel": kernel, **asked}
    if options["arch"] == "auto":
        options["arch"] = None
    return _complete(options, shape)


def _works(asked: Mapping[str, Any], shape: Shape | None) -> bool:
    try:
        _complete(asked, shape)
    except UsageProblem:
        return False
    return True


def _complete(asked: Mapping[str, Any], shape: Shape | None) -> KernelConfig:
    kernel = find_kernel(asked["kernel"])
    arch = asked["arch"] or kernel.archs[0]
    if arch not in kernel.archs:
        raise ConfigError(f"{kernel.name} is written for {' and '.join(kernel.archs)}, not for {arch!r}", "arch")
    dtype = asked["dtype"] or kernel.dtypes[0]
    check_dtype(dtype)
    grouped = bool(asked.get("grouped") or (shape and shape.groups))
    masked = bool(asked.get("masked") or (shape and shape.masked))
    epilogue = find_epilogue(asked["epilogue"] or NONE)
    sources = Sources.of(kernel, epilogue)
    fixed = {"kernel": kernel.name, "arch": arch, "dtype": dtype, "epilogue": epilogue.name}
    fixed |= {"grouped": grouped, "masked": masked}
    choices = ({**asked, **fixed, **tiling} for tiling in tilings(kernel, arch, asked, shape))
    found = fixed | _first_allowed(choices, sources.root)
    options: dict[str, Any] = {name: found[name] for name in OPTIONS}
    options |= {name: tuple(value[:2]) for name, value in options.items() if OPTIONS[name].kind == "pair"}
    return KernelConfig(kernel=kernel.name, **options, grouped=grouped, masked=masked, sources=sources)


def _first_allowed(choices: Iterable[Mapping[str, Any]], root: Path) -> dict[str, Any]:
    """Returns the first choice that the rules allow, completed. Raises the `ConfigError` of the first choice if they
    allow none.
    """
    first: ConfigError | None = None
    for choice in choices:
        try:
            return planner.complete(choice, root)
        except ConfigError as error:
            first = first or error
    assert first is not None, "there is a choice at least"
    raise first


@dataclass(frozen=True)
class Preset:
    """Describes a preset. ``options`` has its values by the names of `make_config`, ``stages`` the depth by kernel, if
    it sets one, and ``walk`` the values for kernels that compute tile after tile.
    """

    name: str
    summary: str
    options: dict[str, Any]
    stages: dict[str, int] = field(default_factory=dict)
    walk: dict[str, Any] = field(default_factory=dict)


ONE_CTA = {"arch": "sm_100a", "cta_group": 1, "mma_shape": (128, 256)}
HOPPER = {"arch": "sm_90a", "mma_shape": (128, 256)}
PAIR = {"arch": "sm_100a", "cta_group": 2, "mma_shape": (256, 256)}

DEFAULT = Preset("default", "what the kernel chooses, also on a GPU for which harness tune has found another", {})
"""Requests the kernel's own choice. Without it, a GPU may run the configuration that tuning has found."""

PRESETS = {
    preset.name: preset
    for preset in (
        Preset("cute-03", "MMA by one CTA, multicast in a 4x4 cluster", {**ONE_CTA, "cluster": (4, 4)}),
        Preset("cute-04", "MMA by a pair, multicast in a 4x4 cluster", {**PAIR, "cluster": (4, 4)}),
        Preset(
            "1cta",
            "MMA by one CTA, no cluster, 4 stages (3 next to the whole tile of C that kernel6 keeps)",
            {**ONE_CTA, "cluster": (1, 1)},
            stages={"kernel6": 3, "kernel7": 4, "kernel8": 4},
        ),
        Preset(
            "2cta",
            "MMA by a pair, a cluster of that pair alone, 4 stages",
            {**PAIR, "cluster": (2, 1), "multicast": False},
            stages={"kernel6": 4, "kernel7": 4, "kernel8": 4},
        ),
        Preset(
            "2cta-multicast",
            "MMA by a pair, A and B each shared by two CTAs, 4 stages",
            {**PAIR, "cluster": (4, 2)},
            stages={"kernel6": 4, "kernel7": 4, "kernel8": 4},
        ),
        Preset(
            "tilus-tile",
            "fp16, a 256x256 tile by a pair, 5 stages (from kernel7 on 6), C leaves 32 columns at a time",
            {**PAIR, "dtype": "fp16", "cluster": (2, 1), "epilogue_width": 32},
            stages={"kernel6": 5, "kernel7": 6, "kernel8": 6},
        ),
        Preset(
            "tilus-v6",
            "fp16, a 256x256 tile by a pair; persistent CTAs, cluster launch control, two accumulators",
            {**PAIR, "dtype": "fp16", "cluster": (2, 1), "epilogue_width": 32},
            stages={"kernel6": 5, "kernel7": 6, "kernel8": 6},
            walk={"scheduler": "clc", "raster_group": 8, "accumulators": 2},
        ),
        Preset("hopper-2x1", "a 128x256 tile, B multicast to two CTAs along M", {**HOPPER, "cluster": (2, 1)}),
    )
}


def chosen_options(kernel: str, preset: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Returns options for `make_config`: those requested, and else those of the preset.

    None and ``auto`` request nothing.
    """
    asked = {name: value for name, value in options.items() if value not in (None, "auto")}
    if preset is None:
        return asked
    found = find_preset(preset)
    walk = found.walk if find_kernel(kernel).is_persistent else {}
    return {**found.options, **walk, "stages": found.stages.get(kernel), **asked}


def configure(kernel: str, preset: str | None = None, **options: Any) -> KernelConfig:
    """Makes a configuration of the kernel. Each option has the requested value, else that of the preset, else the one
    that suits the shape if there is one, else the default.
    """
    return make_config(kernel, **chosen_options(kernel, preset, options))


def find_preset(name: str) -> Preset:
    """Looks up a preset by name."""
    if name == DEFAULT.name:
        return DEFAULT
    if name not in PRESETS:
        raise UsageProblem(f"there is no preset {name!r}; use one of: {', '.join((*PRESETS, DEFAULT.name))}")
    return PRESETS[name]
