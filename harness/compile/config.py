"""Makes the configuration of a kernel from the options that are requested.

The kernels decide which values are legal together, and choose those that are not requested (`harness.compile.planner`).
An error of theirs suggests changes that were tried and work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from emugpu.errors import UsageProblem
from harness.compile import few_rows, own_kernel, planner
from harness.compile.catalog import KERNELS, Kernel
from harness.compile.options import OPTIONS
from harness.compile.own_kernel import CHECKOUT, Sources
from harness.compile.planner import ConfigError
from harness.compile.tilings import OF_TILING, estimates, offered
from harness.epilogues import EPILOGUES, NONE, Epilogue, find_epilogue
from harness.problem import BF16, ELEMENT_TYPES, FP8, Shape, check_dtype


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
    if kernel.name == few_rows.NAME and shape:
        return [few_rows.tile(shape, arch, asked)]
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

    If no single change works, suggests leaving out as few options as possible. No option mends a kernel's declaration.
    """
    if refusal.subject == "declaration":
        return UsageProblem(str(refusal))

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
            f"{f' split-K {self.split_k}' if self.split_k > 1 else ''}{' swapped' if self.swapped else ''}"
            f"{' masked' if self.masked else ' grouped' if self.grouped else ''}"
            f"{'' if self.epilogue == NONE else f' with {self.epilogue}'}"
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
